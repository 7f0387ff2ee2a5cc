"""Use the trained models of a run: predict, export, forget a client, add one."""
