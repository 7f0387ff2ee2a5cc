"""Data: where they come from, who gets which, and how they reach a network."""
