"""Make an experiment from a configuration or from participants, and train it."""
