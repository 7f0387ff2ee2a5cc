"""Who gets which samples: every sample goes to one client at most, and to one of its splits."""

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

SMALLEST = 3
"""A client needs a sample to train on, one to evaluate and one to test."""

DIRICHLET_TRIES = 100


@dataclass(frozen=True)
class Partition:
    """Samples in client order, and where each client's train, validation and test begin.

    Two flat tensors, so that a hundred thousand clients cost what their samples cost, and
    worker processes can share them. Client k owns order[bounds[k, 0]:bounds[k, 3]].
    """

    order: Tensor
    bounds: Tensor

    def __len__(self) -> int:
        return len(self.bounds)

    def indices(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """The client's train, validation and test samples."""
        a, b, c, d = self.bounds[client].tolist()
        return self.order[a:b], self.order[b:c], self.order[c:d]

    def all_test(self) -> Tensor:
        """The test samples of all clients, client by client."""
        sizes = self.bounds.diff(dim=1).flatten()
        is_test = torch.tensor([False, False, True]).repeat(len(self))
        return self.order[is_test.repeat_interleave(sizes)]

    def data(self, client: int, x: Tensor, y: Tensor) -> ClientData:
        """The client's view of the data."""
        train, validation, test = (Examples(x, y, index) for index in self.indices(client))
        return ClientData(train, validation, test)

    def counts(self, labels: Tensor, num_classes: int) -> Tensor:
        """How many samples of each class each client owns, [clients, classes].

        `labels` has the classes of all samples in client order.
        """
        sizes = self.bounds[:, 3] - self.bounds[:, 0]
        owner = torch.repeat_interleave(torch.arange(len(self)), sizes)
        cells = owner * num_classes + labels
        return cells.bincount(minlength=len(self) * num_classes).view(len(self), num_classes)


def by_classes(
    y: Indices, num_classes: int, clients: int, per_client: int, seed: int
) -> list[Indices]:
    """The paper's partition, after pFedHN: `per_client` classes for each client, none twice.

    A class has per_client * clients / num_classes owners (rounded down or up where that is no
    whole number), and is shared out in proportions drawn from U(0.4, 0.6).
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
    owners = _deal_classes(num_classes, clients, per_client, rng)
    shares: list[list[Indices]] = [[] for _ in range(clients)]
    for label, holders in enumerate(owners):
        samples = rng.permutation(np.flatnonzero(y == label))
        if len(samples) < len(holders):
            raise ConfigError(
                f"class {label} has {len(samples)} samples for {len(holders)} clients; "
                "lower federation.clients or data.classes_per_client"
            )
        parts = _share_out(samples, rng.uniform(0.4, 0.6, len(holders)), at_least=1)
        for holder, part in zip(holders, parts, strict=True):
            shares[holder].append(part)
    return [np.concatenate(parts) for parts in shares]


def _share_out(samples: Indices, weights: NDArray[np.float64], at_least: int) -> list[Indices]:
    """Cut `samples` in proportion to `weights`, after everybody has been given `at_least`."""
    ends = np.cumsum(weights) / weights.sum()
    free = len(samples) - at_least * len(weights)
    cuts = np.rint(ends * free).astype(int) + at_least * np.arange(1, len(weights) + 1)
    return np.split(samples, cuts[:-1])


def _deal_classes(
    num_classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """The owners of each class. Taking the classes with most places left never runs aground."""
    places = np.full(num_classes, clients * per_client // num_classes)
    extra = clients * per_client % num_classes
    places[rng.choice(num_classes, extra, replace=False)] += 1
    owners: list[list[int]] = [[] for _ in range(num_classes)]
    for client in rng.permutation(clients):
        by_places_left = np.lexsort((rng.random(num_classes), -places))
        for label in by_places_left[:per_client]:
            owners[label].append(int(client))
            places[label] -= 1
    return owners


def by_dirichlet(
    y: Indices, num_classes: int, clients: int, alpha: float, seed: int
) -> list[Indices]:
    """Each class is shared out in proportions drawn from Dirichlet(alpha) (Hsu et al. 2019).

    Drawn anew until every client has enough samples for its three splits.
    """
    rng = numpy_stream(seed, "partition")
    for _ in range(DIRICHLET_TRIES):
        shares: list[list[Indices]] = [[] for _ in range(clients)]
        for label in range(num_classes):
            samples = rng.permutation(np.flatnonzero(y == label))
            weights = rng.dirichlet(np.full(clients, alpha))
            for client, part in enumerate(_share_out(samples, weights, at_least=0)):
                shares[client].append(part)
        parts = [np.concatenate(share) for share in shares]
        if min(len(part) for part in parts) >= SMALLEST:
            return parts
    raise ConfigError(
        f"data.alpha = {alpha} leaves some of {clients} clients with fewer than {SMALLEST} samples "
        f"in each of {DIRICHLET_TRIES} draws; raise data.alpha or lower federation.clients"
    )


def iid(y: Indices, clients: int, seed: int) -> list[Indices]:
    """Everybody gets a random share of the same size."""
    return np.array_split(numpy_stream(seed, "partition").permutation(len(y)), clients)


def nothing(clients: int) -> Partition:
    """Clients none of whose samples are on this machine."""
    return Partition(torch.empty(0, dtype=torch.int64), torch.zeros(clients, 4, dtype=torch.int64))


def each_its_own(labels: Sequence[Indices], seed: int) -> Partition:
    """Every client has data of its own, numbered from 0, and splits them as if it were alone."""
    own = [assemble([np.arange(len(y))], y, seed) for y in labels]
    starts = np.cumsum([0, *map(len, labels)])[:-1]
    bounds = [part.bounds + int(start) for part, start in zip(own, starts, strict=True)]
    return Partition(torch.cat([part.order for part in own]), torch.cat(bounds))


def only(client: int, clients: int, y: Indices, seed: int) -> Partition:
    """All samples of this machine are those of one client."""
    own = assemble([np.arange(len(y))], y, seed)
    bounds = torch.zeros(clients, 4, dtype=torch.int64)
    bounds[client] = own.bounds[0]
    return Partition(own.order, bounds)


def assemble(parts: list[Indices], y: Indices, seed: int, samples: int | None = None) -> Partition:
    """Split each client's samples 8:1:1 so that every split follows the client's own classes.

    With `samples` a client keeps so many to train on and to evaluate with. Its test samples are
    those that it has without.
    """
    rng, fewer = numpy_stream(seed, "split"), numpy_stream(seed, "samples")
    order: list[Indices] = []
    bounds = np.zeros((len(parts), 4), np.int64)
    start = 0
    for client, part in enumerate(parts):
        if len(part) < SMALLEST:
            raise ConfigError(
                f"client {client} would get {len(part)} samples, but needs at least {SMALLEST} "
                "(train, validation, test); lower federation.clients"
            )
        splits = _split(part, y, rng)
        if samples is not None:
            splits = _kept(splits, samples, fewer)
        order.extend(splits)
        bounds[client] = start + np.cumsum([0, *map(len, splits)])
        start = int(bounds[client, 3])
    return Partition(torch.from_numpy(np.concatenate(order)), torch.from_numpy(bounds))


def _split(part: Indices, y: Indices, rng: np.random.Generator) -> list[Indices]:
    """Train, validation, test. Sorted by class and picked at even distances: stratified."""
    part = rng.permutation(part)
    part = part[np.argsort(y[part], kind="stable")]
    tenth = max(1, round(len(part) / 10))
    test = _spread(len(part), tenth, rng.random())
    rest = np.delete(part, test)
    validation = _spread(len(rest), tenth, rng.random())
    return [np.delete(rest, validation), rest[validation], part[test]]


def _kept(splits: list[Indices], samples: int, rng: np.random.Generator) -> list[Indices]:
    """So many of train and validation, 8:1, each picked at even distances; test stays whole."""
    train, validation, test = splits
    if len(train) + len(validation) <= samples:
        return splits
    ninth = max(1, round(samples / 9))
    return [
        train[_spread(len(train), samples - ninth, rng.random())],
        validation[_spread(len(validation), ninth, rng.random())],
        test,
    ]


def _spread(length: int, count: int, offset: float) -> Indices:
    """`count` different positions below `length`, at even distances from a random start."""
    return ((np.arange(count) + offset) * length / count).astype(np.int64)
