"""Partitions: every sample belongs to at most one client, and to one of its splits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgh.core.rng import numpy_stream
from fedgh.core.types import ClientData, Examples
from fedgh.errors import ConfigError

Indices = NDArray[np.int64]

MIN_SAMPLES = 3
"""Samples that a client needs: one each for training, validation and test."""

MAX_DIRICHLET_DRAWS = 100


@dataclass(frozen=True)
class Partition:
    """Samples in client order, and the bounds of each client's three splits.

    It consists of two flat tensors, so that its size depends on the number of samples even with a
    hundred thousand clients, and worker processes can share it. Client k has the samples
    order[bounds[k, 0]:bounds[k, 3]].
    """

    order: Tensor
    bounds: Tensor

    def __len__(self) -> int:
        return len(self.bounds)

    def indices(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the indices of the client's training, validation and test samples."""
        a, b, c, d = self.bounds[client].tolist()
        return self.order[a:b], self.order[b:c], self.order[c:d]

    def all_test(self) -> Tensor:
        """Return the indices of the test samples of all clients, in client order."""
        sizes = self.bounds.diff(dim=1).flatten()
        is_test = torch.tensor([False, False, True]).repeat(len(self))
        return self.order[is_test.repeat_interleave(sizes)]

    def data(self, client: int, x: Tensor, y: Tensor) -> ClientData:
        """Return the client's three splits as views of the data."""
        train, validation, test = (Examples(x, y, index) for index in self.indices(client))
        return ClientData(train, validation, test)

    def counts(self, labels: Tensor, num_classes: int) -> Tensor:
        """Return the number of samples of each client and class, [clients, classes].

        `labels` are the classes of all samples in client order.
        """
        sizes = self.bounds[:, 3] - self.bounds[:, 0]
        owner = torch.repeat_interleave(torch.arange(len(self)), sizes)
        cells = owner * num_classes + labels
        return cells.bincount(minlength=len(self) * num_classes).view(len(self), num_classes)


def by_classes(
    y: Indices, num_classes: int, clients: int, per_client: int, seed: int
) -> list[Indices]:
    """Return the paper's partition, after pFedHN: `per_client` different classes for each client.

    A class has per_client * clients / num_classes owners, rounded down or up. Its samples are
    divided among them in proportions drawn from U(0.4, 0.6). Raise ConfigError if that is not
    possible.
    """
    if not 1 <= per_client <= num_classes:
        raise ConfigError(
            f"data.classes_per_client = {per_client}: there are {num_classes} classes in all"
        )
    if clients * per_client < num_classes:
        raise ConfigError(
            f"{clients} clients with {per_client} classes each cannot hold all {num_classes} "
            f"classes; raise data.classes_per_client to at least {-(-num_classes // clients)} "
            f"or federation.clients to at least {-(-num_classes // per_client)}"
        )
    rng = numpy_stream(seed, "partition")
    owners = _assign_classes(num_classes, clients, per_client, rng)
    shares: list[list[Indices]] = [[] for _ in range(clients)]
    for label, holders in enumerate(owners):
        samples = rng.permutation(np.flatnonzero(y == label))
        if len(samples) < len(holders):
            raise ConfigError(
                f"class {label} has {len(samples)} samples for {len(holders)} clients; "
                "lower federation.clients or data.classes_per_client"
            )
        parts = _divide(samples, rng.uniform(0.4, 0.6, len(holders)), at_least=1)
        for holder, part in zip(holders, parts, strict=True):
            shares[holder].append(part)
    return [np.concatenate(parts) for parts in shares]


def _divide(samples: Indices, weights: NDArray[np.float64], at_least: int) -> list[Indices]:
    """Return parts of `samples`: `at_least` each, and the rest in proportion to `weights`."""
    ends = np.cumsum(weights) / weights.sum()
    free = len(samples) - at_least * len(weights)
    cuts = np.rint(ends * free).astype(int) + at_least * np.arange(1, len(weights) + 1)
    return np.split(samples, cuts[:-1])


def _assign_classes(
    num_classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """Return the owners of each class.

    Each client takes the classes that lack most owners; then every client finds enough classes.
    """
    vacancies = np.full(num_classes, clients * per_client // num_classes)
    extra = clients * per_client % num_classes
    vacancies[rng.choice(num_classes, extra, replace=False)] += 1
    owners: list[list[int]] = [[] for _ in range(num_classes)]
    for client in rng.permutation(clients):
        by_vacancies = np.lexsort((rng.random(num_classes), -vacancies))
        for label in by_vacancies[:per_client]:
            owners[label].append(int(client))
            vacancies[label] -= 1
    return owners


def by_dirichlet(
    y: Indices, num_classes: int, clients: int, alpha: float, seed: int
) -> list[Indices]:
    """Return a partition of each class in proportions from Dirichlet(alpha) (Hsu et al. 2019).

    Draw again until every client has enough samples for its three splits. Raise ConfigError after
    MAX_DIRICHLET_DRAWS draws.
    """
    rng = numpy_stream(seed, "partition")
    for _ in range(MAX_DIRICHLET_DRAWS):
        shares: list[list[Indices]] = [[] for _ in range(clients)]
        for label in range(num_classes):
            samples = rng.permutation(np.flatnonzero(y == label))
            weights = rng.dirichlet(np.full(clients, alpha))
            for client, part in enumerate(_divide(samples, weights, at_least=0)):
                shares[client].append(part)
        parts = [np.concatenate(share) for share in shares]
        if min(len(part) for part in parts) >= MIN_SAMPLES:
            return parts
    raise ConfigError(
        f"data.alpha = {alpha} leaves some of {clients} clients with fewer than {MIN_SAMPLES} "
        f"samples in each of {MAX_DIRICHLET_DRAWS} draws; raise data.alpha or lower "
        "federation.clients"
    )


def iid(y: Indices, clients: int, seed: int) -> list[Indices]:
    """Return a random part of the same size for each client."""
    return np.array_split(numpy_stream(seed, "partition").permutation(len(y)), clients)


def empty(clients: int) -> Partition:
    """Return the partition of clients whose samples are not on this machine."""
    return Partition(torch.empty(0, dtype=torch.int64), torch.zeros(clients, 4, dtype=torch.int64))


def separate(labels: Sequence[Indices], seed: int) -> Partition:
    """Return the partition of clients with data of their own, each numbered from 0.

    Each client splits its data as if it were the only one.
    """
    own = [assemble([np.arange(len(y))], y, seed) for y in labels]
    starts = np.cumsum([0, *map(len, labels)])[:-1]
    bounds = [part.bounds + int(start) for part, start in zip(own, starts, strict=True)]
    return Partition(torch.cat([part.order for part in own]), torch.cat(bounds))


def single(client: int, clients: int, y: Indices, seed: int) -> Partition:
    """Return the partition in which all samples of this machine belong to one client."""
    own = assemble([np.arange(len(y))], y, seed)
    bounds = torch.zeros(clients, 4, dtype=torch.int64)
    bounds[client] = own.bounds[0]
    return Partition(own.order, bounds)


def assemble(parts: list[Indices], y: Indices, seed: int, samples: int | None = None) -> Partition:
    """Split each client's samples 8:1:1, stratified by class.

    `samples` limits the training and validation samples of a client together; its test samples stay
    the same. Raise ConfigError for a client with too few samples.
    """
    rng, limit_rng = numpy_stream(seed, "split"), numpy_stream(seed, "samples")
    of_clients = []
    for client, part in enumerate(parts):
        if len(part) < MIN_SAMPLES:
            raise ConfigError(
                f"client {client} would get {len(part)} samples, but needs at least {MIN_SAMPLES} "
                "(train, validation, test); lower federation.clients"
            )
        splits = _split(part, y, rng)
        if samples is not None:
            splits = _limited(splits, samples, limit_rng)
        of_clients.append(splits)
    return from_splits(of_clients)


def from_splits(of_clients: list[list[Indices]]) -> Partition:
    """Return the partition with these training, validation and test samples of each client.

    Raise ConfigError if a split is empty.
    """
    bounds = np.zeros((len(of_clients), 4), np.int64)
    start = 0
    for client, splits in enumerate(of_clients):
        if not all(map(len, splits)):
            raise ConfigError(
                f"client {client} would get no training, validation or test samples; lower "
                "federation.clients"
            )
        bounds[client] = start + np.cumsum([0, *map(len, splits)])
        start = int(bounds[client, 3])
    order = np.concatenate([rows for splits in of_clients for rows in splits])
    return Partition(torch.from_numpy(order), torch.from_numpy(bounds))


def _split(part: Indices, y: Indices, rng: np.random.Generator) -> list[Indices]:
    """Return training, validation and test samples.

    The samples are sorted by class and taken at even distances, so that each split is stratified.
    """
    part = rng.permutation(part)
    part = part[np.argsort(y[part], kind="stable")]
    tenth = max(1, round(len(part) / 10))
    rest, test = taken(part, spread(len(part), tenth, rng.random()))
    train, validation = taken(rest, spread(len(rest), tenth, rng.random()))
    return [train, validation, test]


def taken(samples: Indices, positions: Indices) -> tuple[Indices, Indices]:
    """Return the other samples, and those at these positions."""
    others = np.ones(len(samples), bool)
    others[positions] = False
    return samples[others], samples[positions]


def _limited(splits: list[Indices], samples: int, rng: np.random.Generator) -> list[Indices]:
    """Return splits with `samples` for training and validation, 8:1; test stays the same.

    The samples are taken at even distances.
    """
    train, validation, test = splits
    if len(train) + len(validation) <= samples:
        return splits
    ninth = max(1, round(samples / 9))
    return [
        train[spread(len(train), samples - ninth, rng.random())],
        validation[spread(len(validation), ninth, rng.random())],
        test,
    ]


def spread(length: int, count: int, offset: float) -> Indices:
    """Return `count` different positions below `length`, at even distances from an offset."""
    return ((np.arange(count) + offset) * length / count).astype(np.int64)
