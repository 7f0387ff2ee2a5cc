"""Data sets, and their partition among the clients."""
