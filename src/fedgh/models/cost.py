"""Count the operations of a network, two for each multiplication.

Matrix products and convolutions are counted exactly. PyTorch does not report those inside some
layers (an LSTM, for example); a network counts at least one multiplication per weight.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedgh.core.rng import isolated
from fedgh.core.types import Task
from fedgh.models import Extractor, split_model


def estimated_flops(make: Extractor, task: Task) -> int:
    """Return about the operations of the forward pass for one input.

    The layers of a network are counted, not the operations inside of them: that takes a second
    less, since PyTorch's counter imports its compiler. Exact for linear layers and convolutions.
    """
    counted = 0

    def count(layer: nn.Linear | nn.Conv2d, _inputs: object, out: Tensor) -> None:
        nonlocal counted
        places = out.numel() // len(layer.weight)  # at which each weight is used
        counted += 2 * places * layer.weight.numel()

    with _model(make, task) as model, torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.register_forward_hook(count)
        model.eval()(torch.zeros(1, *task.input_shape))
        return max(counted, 2 * sum(p.numel() for p in model.parameters() if p.ndim > 1))


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
    from torch.utils.flop_counter import FlopCounterMode  # imports the compiler when it is used

    with FlopCounterMode(display=False) as counter:
        compute()
    return int(counter.get_total_flops())


@contextmanager
def _model(make: Extractor, task: Task) -> Iterator[nn.Module]:
    """Create a network without drawing from PyTorch's global random generator."""
    with isolated(task.seed, "cost"):
        yield split_model(make, task)
