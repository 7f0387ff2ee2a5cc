"""What a network costs to compute: two operations for each multiplication.

Products and convolutions are counted exactly. What some layers compute out of sight (an LSTM) is
not: then a network counts as one multiplication for each of its weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedgh.core.rng import isolated
from fedgh.core.types import Task
from fedgh.models import Extractor, split_model


def forward_flops(make: Extractor, task: Task) -> int:
    """Operations of the products and convolutions in one input's way through the network."""
    with _model(make, task) as model:
        weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)  # no biases
        seen = _count(lambda: model.eval()(torch.zeros(2, *task.input_shape))) // 2
        return max(seen, 2 * weights)


def training_flops(make: Extractor, task: Task) -> int:
    """The same for one input of a training step: forward, and backward to all weights."""
    with _model(make, task) as model:
        return (
            _count(lambda: model.train()(torch.zeros(2, *task.input_shape)).sum().backward()) // 2
        )


def _count(compute: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        compute()
    return int(counter.get_total_flops())


@contextmanager
def _model(make: Extractor, task: Task) -> Iterator[nn.Module]:
    """A network to count with, whose random draws disturb nobody."""
    with isolated(task.seed, "cost"):
        yield split_model(make, task)
