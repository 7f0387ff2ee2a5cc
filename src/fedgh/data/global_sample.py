"""Test samples of all clients, on which each client's global accuracy is measured."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.core.rng import stream
from fedgh.core.types import Task
from fedgh.data.partition import Partition

MAX_SAMPLES = 1000
"""Samples on which one client is evaluated."""

MAX_TOTAL = 200_000
"""Samples for all clients together, approximately: it bounds the time of the evaluation."""


@dataclass(frozen=True)
class GlobalSample:
    """Test samples with equal numbers per class, and the number for each client.

    The classes alternate in `order`, so that any `size` consecutive samples are balanced.
    """

    order: Tensor
    size: int

    def indices(self, client: int) -> Tensor:
        """Return the samples of a client: those after the previous client's, cyclically."""
        positions = torch.arange(client * self.size, (client + 1) * self.size) % len(self.order)
        return self.order[positions].sort().values


def balanced(partition: Partition, y: Tensor, task: Task) -> GlobalSample:
    """Return the largest sample of all clients' test data with equal numbers per class.

    If it is larger than the part for one client, clients are evaluated on different parts, so that
    their mean rests on many samples. A class without test data is left out.
    """
    test = partition.all_test()
    test = test[torch.randperm(len(test), generator=stream(task.seed, "global-sample"))]
    groups = [test[y[test] == label] for label in y[test].unique().tolist()]
    smallest = min(map(len, groups))
    alternating = torch.stack([group[:smallest] for group in groups], dim=1).flatten()
    size = min(MAX_SAMPLES, max(task.num_classes, MAX_TOTAL // task.num_clients), len(alternating))
    if size > len(groups):
        size -= size % len(groups)
    return GlobalSample(alternating, size)
