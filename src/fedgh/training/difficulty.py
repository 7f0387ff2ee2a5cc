"""The linear accuracy of a partition: which classes meet in a client, and how alike they are.

The seed decides which classes a client gets, and a client with cats and dogs reaches less than one
with planes and frogs, whatever the method. A linear classifier on fixed features measures this
without training a network: its accuracy on each client's test samples, where it chooses only among
the client's own classes, as a mean over clients. The lower it is, the harder is the partition.

The classifier is solved from the moments of all samples (`core.feature_header`), in two halves: the
samples of one half are classified with the moments of the other.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from statistics import mean, stdev

import torch
from torch import Tensor

from fedgh.config import Config
from fedgh.core.batches import in_order
from fedgh.core.feature_header import header_logits, solve
from fedgh.core.moments import Moments
from fedgh.core.rng import stream
from fedgh.core.threads import one_thread
from fedgh.core.types import Examples
from fedgh.data.partition import Partition
from fedgh.data.sources import Source
from fedgh.errors import ConfigError
from fedgh.models.features import feature_map
from fedgh.training.experiment import Experiment, partitioned
from fedgh.training.public import held_out_rows

WIDTH = 256
"""Width of the feature vectors: enough to rank partitions, and seconds for 60,000 images."""

SHRINKAGE = 0.5  # as in FedGH+

MAX_SAMPLES = 100_000
"""Samples of a data set, at most: more would take minutes."""

COMPARED_SEEDS = range(100)
"""Seeds whose partitions a partition is compared with."""

MAX_COMPARED = 1000
"""Clients of a partition that is compared with others, at most: more would take minutes."""

FEATURE_SEED = 0
"""Seed of the feature map; it does not depend on the run, so that partitions are comparable."""


def linear_accuracy(experiment: Experiment) -> float | None:
    """Return the linear accuracy of an experiment's partition.

    None if the samples of the clients are not on this machine, are more than `MAX_SAMPLES`, or have
    no fixed features.
    """
    logits = _logits(experiment)
    return None if logits is None else _accuracy(experiment.partition, experiment.source, logits)


def describe(experiment: Experiment) -> str:
    """Return the linear accuracy beside those of other seeds as text; "" if it is unknown."""
    own = linear_accuracy(experiment)
    if own is None:
        return ""
    text = f"linear accuracy of this partition: {100 * own:.1f}% (the lower, the harder)"
    if len(experiment.partition) > MAX_COMPARED:
        return text
    others = linear_accuracies(experiment, COMPARED_SEEDS)
    if len(others) < 2:
        return text
    harder = sum(other < own for other in others)
    seeds = f"seeds 0 to {COMPARED_SEEDS[-1]}"
    if len(others) < len(COMPARED_SEEDS):
        seeds = f"{len(others)} of {seeds}, the others give no partition"
    return (
        f"{text}; {seeds}: {100 * mean(others):.1f} ± {100 * stdev(others):.1f}%, {harder} of "
        f"{len(others)} are harder"
    )


def linear_accuracies(experiment: Experiment, seeds: Iterable[int]) -> list[float]:
    """Return the linear accuracies of the partitions that other seeds draw; [] if unknown.

    A seed that gives no partition is left out: a Dirichlet draw may leave a client without samples.
    """
    logits, source = _logits(experiment), experiment.source
    if logits is None:
        return []
    found = []
    for seed in seeds:
        with suppress(ConfigError):
            found.append(_accuracy(_drawn(experiment.config, source, seed), source, logits))
    return found


def _drawn(config: Config, source: Source, seed: int) -> Partition:
    federation = config.federation.model_copy(update={"seed": seed})
    config = config.model_copy(update={"federation": federation})
    return partitioned(config, source, held_out_rows(config, source))


def _accuracy(partition: Partition, source: Source, logits: Tensor) -> float:
    """Return the mean over clients of the accuracy among their own classes, on their test data."""
    sizes = partition.bounds.diff(dim=1)
    owners = torch.arange(len(partition)).repeat_interleave(sizes[:, 2])
    held = partition.counts(source.y[partition.order], source.num_classes) > 0
    test = partition.all_test()
    chosen = logits[test].masked_fill(~held[owners], -torch.inf).argmax(dim=1)
    right = (chosen == source.y[test]).double()
    of_client = torch.zeros(len(partition), dtype=torch.float64).index_add_(0, owners, right)
    return float((of_client / sizes[:, 2]).mean())


def _logits(experiment: Experiment) -> Tensor | None:
    """Return the logits [samples, classes] of all samples; None if they are not computed."""
    source = experiment.source
    if not experiment.pooled or len(source) > MAX_SAMPLES:
        return None
    try:
        feature_map("auto", "", WIDTH, source.shape, FEATURE_SEED)
    except ConfigError:
        return None
    return _cached_logits(_Key(source))


class _Key:
    """A data set as a key of the cache: equal if the samples are equal."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __hash__(self) -> int:
        return hash(self.source.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.source.digest == other.source.digest


@lru_cache(maxsize=1)  # the methods of a comparison have the same data
def _cached_logits(key: _Key) -> Tensor:
    source = key.source
    features = feature_map("auto", "", WIDTH, source.shape, FEATURE_SEED)
    everything = Examples(source.x, source.y, torch.arange(len(source)))
    # Several threads for batches this small would mostly wait for each other.
    with torch.no_grad(), one_thread():
        vectors = torch.cat([features(x) for x, _ in in_order(everything)])
    halves = torch.randperm(len(source), generator=stream(FEATURE_SEED, "halves")).chunk(2)
    logits = torch.empty(len(source), source.num_classes)
    for rows, others in (halves, halves[::-1]):
        moments = sum(
            (
                Moments.of(vectors[part], source.y[part], source.num_classes)
                for part in others.split(4096)
            ),
            Moments.zero(source.num_classes, vectors.shape[1]),
        )
        logits[rows] = header_logits(
            solve(moments, "gaussian", SHRINKAGE), vectors[rows], source.num_classes
        )
    return logits
