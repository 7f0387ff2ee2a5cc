"""What a network costs to compute, counted exactly: two operations for each multiplication."""

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
    with _model(make, task) as model, torch.inference_mode():
        return _count(lambda: model.eval()(torch.zeros(2, *task.input_shape))) // 2


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
