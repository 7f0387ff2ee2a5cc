"""Differential privacy of uploads: the mechanism, its accounting, a participant's ledger."""
