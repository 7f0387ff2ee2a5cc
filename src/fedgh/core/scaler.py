"""The scaler of HeteroFL: a narrower network makes the outputs of its layers larger.

A layer that has the share r of the units of the whole network divides its output by r. Each unit
becomes 1/r times larger, and the sum over units that the next layer takes stays about the same.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fedgh.core.subnet import Sizes

Rates = Mapping[str, float]
"""The share of units of each narrower layer, by the path of the layer."""


def layer_rates(whole: Sizes, part: Sizes) -> Rates:
    """Return the rates of the layers that have fewer units in the part than in the whole."""
    return {
        name.removesuffix(".weight"): part[name][0] / shape[0]
        for name, shape in whole.items()
        if len(shape) > 1 and name.endswith(".weight") and part[name][0] < shape[0]
    }


@contextmanager
def scaled(network: nn.Module, rates: Rates) -> Iterator[None]:
    """Divide the outputs of the layers by their rates for the duration, biases included."""
    hooks = [
        network.get_submodule(path).register_forward_hook(partial(_divide, rate))
        for path, rate in rates.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _divide(rate: float, _layer: nn.Module, _inputs: object, out: Tensor) -> Tensor:
    return out / rate


@torch.no_grad()
def fold_scaler(network: nn.Module, rates: Rates) -> None:
    """Divide the weights and biases of the layers by their rates.

    The network then returns without the scaler what it returned with it.
    """
    for path, rate in rates.items():
        for parameter in network.get_submodule(path).parameters(recurse=False):
            parameter.div_(rate)
