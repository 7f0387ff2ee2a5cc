"""Helpers that several tests use; no test is here."""
