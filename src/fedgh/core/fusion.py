"""Fusion of a client's own network with a header on shared features.

Over the client's own classes the logits are

    p · log softmax(network) + g · header + (1 - p) · log prior

where the prior is the class frequencies of the client's training data; the network has learned
them, the header has not. (p, g) = (1, 0) is the network alone, (0, g) the header alone.

Each client selects its pair (p, g) from a grid by the loss on its validation split. Few clients
have enough validation samples for this choice, so the median loss over clients is added, with the
weight of `MEDIAN_WEIGHT` validation samples.
"""

from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

NETWORK_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
HEADER_WEIGHTS = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
PAIRS = torch.tensor(list(product(NETWORK_WEIGHTS, HEADER_WEIGHTS)), dtype=torch.float32)
"""Grid of the weights (p, g)."""

OTHER_CLASS_LOGIT = -100.0
"""Log probability of a class that the client does not have; finite, for exported files."""

MEDIAN_WEIGHT = 50.0
"""Weight of the median loss over clients, in validation samples."""

MAX_LOSS = 20.0
"""Maximum loss of a sample: one confident error must not outweigh all other samples."""


def fuse(network: Tensor, header: Tensor, log_prior: Tensor, pair: Tensor) -> Tensor:
    """Return logits [n, s] over the client's s own classes."""
    p, g = pair
    fused: Tensor = p * network.log_softmax(1) + g * header + (1 - p) * log_prior
    return fused


def own_classes(
    network: Tensor, header: Tensor, own: Tensor, prior: Tensor, pair: Tensor
) -> Tensor:
    """Return fused log probabilities [n, classes], `OTHER_CLASS_LOGIT` if not in `own`."""
    logits = network.new_full(network.shape, OTHER_CLASS_LOGIT)
    logits[:, own] = fuse(network[:, own], header[:, own], prior, pair).log_softmax(1)
    return logits


def all_classes(fused: Tensor, header: Tensor, own: Tensor) -> Tensor:
    """Return log probabilities of all classes.

    The header decides between the client's own classes and the others; `fused` decides among the
    own classes.
    """
    logits = header.log_softmax(1)
    own_total = logits[:, own].logsumexp(1, keepdim=True)
    logits[:, own] = own_total + fused[:, own]
    return logits


def losses(network: Tensor, header: Tensor, own: Tensor, prior: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss on samples with labels `y`, for each pair of `PAIRS`."""
    targets = torch.searchsorted(own, y)  # positions of the labels among the own classes
    logits_per_pair = (fuse(network[:, own], header[:, own], prior, pair) for pair in PAIRS)
    per_sample = (cross_entropy(logits, targets, reduction="none") for logits in logits_per_pair)
    return torch.stack([loss.clamp(max=MAX_LOSS).mean() for loss in per_sample])


def choose(own: Tensor, samples: int, shared: Tensor | None) -> Tensor:
    """Return the pair with the smallest loss.

    `own` is the client's loss per pair on `samples` validation samples; `shared` is the median loss
    over clients, None if unknown.
    """
    total = samples * own if shared is None else samples * own + MEDIAN_WEIGHT * shared
    return PAIRS[int(total.argmin())]
