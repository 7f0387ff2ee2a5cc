"""Differential privacy on uploads: the mechanism, its accounting, a participant's ledger."""
