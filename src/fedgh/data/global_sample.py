"""Test data of all clients together, on which each is judged over all classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.core.rng import stream
from fedgh.core.types import Task
from fedgh.data.partition import Partition

MOST = 1000
"""Samples on which one client is judged, at most."""

ALL_TOGETHER = 200_000
"""About as many samples for all clients together: the time that judging them takes is bounded."""


@dataclass(frozen=True)
class GlobalSample:
    """Test samples, as many of each class, and how many of them one client is judged on.

    The classes take turns in `order`, so that any `size` of them in a row have each class alike.
    """

    order: Tensor
    size: int

    def indices(self, client: int) -> Tensor:
        """The samples of one client: those after its predecessor's, from the start at the end."""
        places = torch.arange(client * self.size, (client + 1) * self.size) % len(self.order)
        return self.order[places].sort().values


def balanced(partition: Partition, y: Tensor, task: Task) -> GlobalSample:
    """The largest sample of the test data of all clients that has each class alike.

    Clients are judged on different parts of it when it is larger than what one of them gets, so
    that their mean stands on many samples. A class without test data is left out.
    """
    test = partition.all_test()
    test = test[torch.randperm(len(test), generator=stream(task.seed, "global-sample"))]
    groups = [test[y[test] == label] for label in y[test].unique().tolist()]
    smallest = min(map(len, groups))
    in_turn = torch.stack([group[:smallest] for group in groups], dim=1).flatten()
    size = min(MOST, max(task.num_classes, ALL_TOGETHER // task.num_clients), len(in_turn))
    if size > len(groups):
        size -= size % len(groups)
    return GlobalSample(in_turn, size)
