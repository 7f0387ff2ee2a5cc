"""A run on disk: its folder, checkpoint, records and summary."""
