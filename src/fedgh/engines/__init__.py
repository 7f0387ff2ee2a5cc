"""Where clients compute: in this process, in worker processes, on a Ray cluster."""
