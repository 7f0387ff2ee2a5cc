"""Defaults that commands, configurations and Python share."""

IMAGE_SIZE = 32
"""Pixels to which the images of a folder are scaled."""

REP_DIM = 500
"""Numbers in a representation, as in the paper."""

NEWCOMER_ROUNDS = 20
"""Rounds that a newcomer trains."""

SEEDS = (0, 1, 2)
"""Seeds with which methods are compared and rehearsed."""

EXTRACTOR_NAMES = ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5")
"""Extractors of a configuration that names none: the five networks of the paper."""
