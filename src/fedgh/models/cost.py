"""Count the operations of a network, two for each multiplication.

Matrix products and convolutions are counted exactly. PyTorch does not report those inside some
layers (an LSTM, for example); a network counts at least one multiplication per weight.
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
    """Return the operations of the forward pass for one input."""
    with _model(make, task) as model:
        weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)  # no biases
        counted = _count(lambda: model.eval()(torch.zeros(2, *task.input_shape))) // 2
        return max(counted, 2 * weights)


def training_flops(make: Extractor, task: Task) -> int:
    """Return the operations of a training step per input: forward, and backward to all weights."""
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
    """Create a network without drawing from PyTorch's global random generator."""
    with isolated(task.seed, "cost"):
        yield split_model(make, task)
