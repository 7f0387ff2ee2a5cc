"""Default values shared by commands, configurations and the Python interface."""

IMAGE_SIZE = 32
"""Height and width in pixels to which the images of a folder are scaled."""

REP_DIM = 500
"""Length of a representation, as in the FedGH paper."""

NEWCOMER_ROUNDS = 20
"""Number of rounds for which a newcomer trains."""

SEEDS = (0, 1, 2)
"""Seeds of a comparison or a rehearsal of methods."""

EXTRACTOR_NAMES = ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5")
"""Extractors of a configuration without `model.extractors`: the five of the FedGH paper."""

COMPARED_METHODS = "standalone,fedavg,fml,fedkd,lg_fedavg,fd,fedproto,fedgh,fedgh_plus"
"""Methods of a comparison without `--methods`: those of the FedGH paper, and FedGH+."""
