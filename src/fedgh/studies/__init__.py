"""Sweeps: comparisons, grid searches, rehearsals, and studies such as the tables of the paper."""
