"""Where clients live: in this process, in worker processes."""
