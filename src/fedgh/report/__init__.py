"""Presentation of runs: tables in the terminal, charts, and pages for a browser."""
