"""The partition and the splits of the code that the FedGH authors published.

Its class draw, after pFedHN, differs from `by_classes` of `data.partition`: a client may get the
same class twice. It uses the older generators of NumPy and Python and the global one of torch, so
that seed 42 of the published code gives the same samples here.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import ConfigDict

from fedgh.core.rng import numpy_stream
from fedgh.data.partition import Indices, Partition, from_splits, spread, taken
from fedgh.errors import ConfigError

VALIDATION = 10_000
"""Training images that the published code holds out for validation."""

MAX_SEED = 2**32 - 1
"""Largest seed of NumPy's older generator."""


@dataclass(frozen=True)
class Published:
    """Deviations of the published code from the FedGH paper; the study as-published uses them."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    partition: bool = False  # the published draw of classes; a client may get a class twice
    split: bool = False  # 40,000 / 10,000 / 10,000 images; tests on the official test images
    first_weights: bool = False  # first round: go on from the previous client's network of its kind
    batch_means: bool = False  # accuracy: mean of the accuracies of batches of 512


def published_partition(
    y: Indices, num_classes: int, clients: int, per_client: int, seed: int
) -> list[Indices]:
    """Return the samples of each client by the published draw, of all samples as one set."""
    owned = _draw(num_classes, clients, per_client, seed)
    return _divide(np.arange(len(y)), y, owned, random.Random(seed))


def published_splits(
    y: Indices, num_classes: int, clients: int, per_client: int, seed: int, tests: int
) -> Partition:
    """Return the published partition with the published splits; the last `tests` samples test."""
    first = _first_test(len(y), tests)
    owned = _draw(num_classes, clients, per_client, seed)
    mixed = torch.randperm(first, generator=torch.Generator().manual_seed(seed)).numpy()
    shuffle = random.Random(seed)
    sets = [mixed[: first - VALIDATION], mixed[first - VALIDATION :], np.arange(first, len(y))]
    parts = [_divide(rows, y, owned, shuffle) for rows in sets]
    return from_splits([list(splits) for splits in zip(*parts, strict=True)])


def official_splits(parts: list[Indices], y: Indices, seed: int, tests: int) -> Partition:
    """Return a partition in which each client tests on its official test images.

    Of its other samples it holds out the published share for validation, stratified by class.
    """
    first = _first_test(len(y), tests)
    rng = numpy_stream(seed, "split")
    splits = []
    for part in parts:
        rest = rng.permutation(part[part < first])
        rest = rest[np.argsort(y[rest], kind="stable")]
        count = max(1, round(len(rest) * VALIDATION / first))
        train, validation = taken(rest, spread(len(rest), count, rng.random()))
        splits.append([train, validation, part[part >= first]])
    return from_splits(splits)


def _first_test(samples: int, tests: int) -> int:
    """Return the number of samples before the official test images."""
    first = samples - tests
    if not tests or first <= VALIDATION:
        raise ConfigError(
            f"published.split needs official test images and more than {VALIDATION:,} others; use "
            "cifar10 or cifar100"
        )
    return first


@dataclass(frozen=True)
class _Owned:
    """A class of a client, and the share of its samples that the client gets."""

    label: int
    share: float


def _draw(num_classes: int, clients: int, per_client: int, seed: int) -> list[list[_Owned]]:
    """Return the classes of each client.

    Every class is drawn equally often. Each client draws one class after the other among those that
    were drawn least; if only one such class is left, it may be a class that the client has.
    """
    times, rest = divmod(clients * per_client, num_classes)
    if rest:
        raise ConfigError(
            f"published.partition draws every class equally often: {clients} clients with "
            f"{per_client} classes each are no multiple of {num_classes} classes"
        )
    if seed > MAX_SEED:
        raise ConfigError(
            f"published.partition: its generator takes no federation.seed above {MAX_SEED}"
        )
    rng = np.random.RandomState(seed)
    shares: list[list[float]] = []
    for _ in range(num_classes):
        weights = rng.uniform(0.4, 0.6, size=times)
        shares.append((weights / weights.sum()).tolist())
    left = np.full(num_classes, times)
    clients_classes = []
    for _ in range(clients):
        labels = []
        for _ in range(per_client):
            labels.append(int(rng.choice(np.flatnonzero(left == left.max()))))
            left[labels[-1]] -= 1
        clients_classes.append([_Owned(label, shares[label].pop()) for label in labels])
    return clients_classes


def _divide(
    rows: Indices, y: Indices, owned: list[list[_Owned]], shuffle: random.Random
) -> list[Indices]:
    """Return the rows of each client; a class's last few rows may remain, as in the published code.

    The share of a client is rounded down to whole samples.
    """
    labels = sorted({each.label for classes in owned for each in classes})
    of_class = {label: rows[y[rows] == label] for label in labels}
    sizes = {label: len(members) for label, members in of_class.items()}
    for members in of_class.values():
        shuffle.shuffle(members)
    out = []
    for classes in owned:
        parts = []
        for each in classes:
            members, end = of_class[each.label], int(sizes[each.label] * each.share)
            parts.append(members[:end])
            of_class[each.label] = members[end:]
        out.append(np.concatenate(parts))
    return out
