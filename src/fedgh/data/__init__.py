"""Data sets, and which client gets which samples."""
