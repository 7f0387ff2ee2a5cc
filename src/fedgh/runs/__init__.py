"""A run on disk: its folder, its states, its records, its summary."""
