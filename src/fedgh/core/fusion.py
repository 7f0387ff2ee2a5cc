"""Fusion of a client's own network with a header on shared features.

Over the client's own classes the logits are

    p · log softmax(network) + g · header + (1 - p) · log prior

where the prior is the class frequencies of its training data, which the network has learned and the
header has not. (p, g) = (1, 0) is the network alone, (0, g) the header alone. The pair is chosen
from a grid by the loss on validation data: the median over clients counts as much as `SHARED`
samples of the client's own, since few clients have enough of them to choose alone.
"""

from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

NETWORK = (0.0, 0.25, 0.5, 0.75, 1.0)
HEADER = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
PAIRS = torch.tensor(list(product(NETWORK, HEADER)), dtype=torch.float32)
"""The weights (p, g) that are tried."""

FOREIGN = -100.0
"""Log probability of a class that is out of the question; finite, for other programs' files."""

SHARED = 50.0
"""Own validation samples that the median over clients counts for."""

MAX_LOSS = 20.0
"""Largest loss in a table: a sure mistake should not outweigh everything else."""


def fuse(network: Tensor, header: Tensor, log_prior: Tensor, pair: Tensor) -> Tensor:
    """Return logits [n, s] over the client's s own classes."""
    p, g = pair
    fused: Tensor = p * network.log_softmax(1) + g * header + (1 - p) * log_prior
    return fused


def own_classes(
    network: Tensor, header: Tensor, own: Tensor, prior: Tensor, pair: Tensor
) -> Tensor:
    """Return log probabilities [n, classes] with which a client tells its `own` classes apart."""
    logits = network.new_full(network.shape, FOREIGN)
    logits[:, own] = fuse(network[:, own], header[:, own], prior, pair).log_softmax(1)
    return logits


def all_classes(fused: Tensor, header: Tensor, own: Tensor) -> Tensor:
    """Return log probabilities of all classes: the header weighs own against other ones.

    Within the own ones `fused` decides.
    """
    logits = header.log_softmax(1)
    together = logits[:, own].logsumexp(1, keepdim=True)
    logits[:, own] = together + fused[:, own]
    return logits


def losses(network: Tensor, header: Tensor, own: Tensor, prior: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss on samples with labels `y` for each of the pairs."""
    places = torch.searchsorted(own, y)
    tried = (fuse(network[:, own], header[:, own], prior, pair) for pair in PAIRS)
    each = (cross_entropy(logits, places, reduction="none") for logits in tried)
    return torch.stack([one.clamp(max=MAX_LOSS).mean() for one in each])


def choose(own: Tensor, samples: int, shared: Tensor | None) -> Tensor:
    """Return the pair with the smallest loss on own samples and, if it is known, over clients."""
    total = samples * own if shared is None else samples * own + SHARED * shared
    return PAIRS[int(total.argmin())]
