"""Cuts: the positions of a narrower network's numbers in a wider one, and means over parts.

A cut follows from the sizes of the tensors. An axis with equal length in both networks is not cut.
Of a longer axis, the narrower network has a window of adjacent units. Axes that are cut from and to
equal lengths get the same window, so a layer, its normalisation and the next layer match. A dense
layer after a flattened image has several inputs per channel; these stay together.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedgh.core.types import Payload
from fedgh.errors import ConfigError

Sizes = Mapping[str, tuple[int, ...]]
"""The sizes of a network's tensors, in the order of its layers."""

Cut = dict[str, tuple[Tensor, ...]]
"""For each tensor of a part, the indices in the whole network along each axis."""


def sizes_of(payload: Payload) -> Sizes:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in payload.items()}


def cut(whole: Sizes, part: Sizes, shift: int = 0) -> Cut:
    """Return the cut whose windows start at unit `shift`; after the last unit follows the first.

    Raise ConfigError for a tensor that only one network has, or that is too large in the part.
    """
    _check_names(whole, part)
    blocks = _blocks(whole)
    return {
        name: _axes(name, shape, part[name], shift, blocks.get(name, 1))
        for name, shape in whole.items()
    }


def take(payload: Payload, cut: Cut) -> Payload:
    """Return copies of the numbers of a network that a cut selects; gradients pass through."""
    return {name: _select(payload[name], axes) for name, axes in cut.items()}


def put(payload: Payload, part: Payload, cut: Cut) -> Payload:
    """Return a copy of a network with the numbers that a cut selects replaced by `part`."""
    whole = {name: tensor.clone() for name, tensor in payload.items()}
    for name, tensor in part.items():
        whole[name][_grid_index(cut[name])] = tensor
    return whole


class CoordinateMean:
    """The weighted mean of each number over the parts that contain it, in double precision."""

    def __init__(self, whole: Sizes) -> None:
        self._sums = {name: torch.zeros(size, dtype=torch.float64) for name, size in whole.items()}
        self._weights = {name: torch.zeros_like(total) for name, total in self._sums.items()}

    def add(self, payload: Payload, cut: Cut, weight: float) -> None:
        """Add the numbers of a part with this weight."""
        for name, tensor in payload.items():
            index = _grid_index(cut[name])
            self._sums[name][index] += tensor.double() * weight
            self._weights[name][index] += weight

    def value(self, old: Payload) -> Payload:
        """Return the means; a number that no part contains keeps its old value, bit for bit."""
        return {name: self._mean(name, tensor) for name, tensor in old.items()}

    def _mean(self, name: str, old: Tensor) -> Tensor:
        sums, weights = self._sums[name], self._weights[name]
        return torch.where(weights > 0, (sums / weights).to(old.dtype), old)


def _check_names(whole: Sizes, part: Sizes) -> None:
    for name in [*whole, *part]:
        if name not in whole or name not in part:
            owner = "the whole network" if name in whole else "the part"
            raise ConfigError(f"only {owner} has a tensor '{name}'")


def _blocks(whole: Sizes) -> dict[str, int]:
    """Return the number of inputs per channel of each dense layer that has more than one.

    It is recognised by its number of inputs: no earlier layer has as many outputs, and it is a
    multiple of the outputs of the last layer.
    """
    blocks: dict[str, int] = {}
    outputs = [0]
    for name, shape in whole.items():
        if len(shape) > 1:
            last = outputs[-1]
            if last and shape[1] not in outputs and shape[1] % last == 0:
                blocks[name] = shape[1] // last
            outputs.append(shape[0])
    return blocks


def _axes(
    name: str, whole: tuple[int, ...], part: tuple[int, ...], shift: int, block: int
) -> tuple[Tensor, ...]:
    """Return the windows of one tensor, in which each `block` inputs stay together."""
    blocks = [block if axis == 1 else 1 for axis in range(len(whole))]
    if len(whole) != len(part) or any(k > size for size, k in zip(whole, part, strict=True)):
        raise ConfigError(f"'{name}' is {part} in the part, which does not fit into {whole}")
    if any(k < size and k % m for size, k, m in zip(whole, part, blocks, strict=True)):
        raise ConfigError(
            f"'{name}' has {part[1]} inputs in the part, no multiple of {block} per channel"
        )
    return tuple(_window(size, k, shift, m) for size, k, m in zip(whole, part, blocks, strict=True))


def _window(size: int, kept: int, shift: int, block: int) -> Tensor:
    if kept == size:
        return torch.arange(size)
    units = (torch.arange(kept // block) + shift) % (size // block)
    return (units[:, None] * block + torch.arange(block)).flatten()


def _select(tensor: Tensor, axes: tuple[Tensor, ...]) -> Tensor:
    for axis, index in enumerate(axes):
        tensor = tensor.index_select(axis, index.to(tensor.device))
    return tensor if axes else tensor.clone()


def _grid_index(axes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the windows of all axes as broadcastable indices, for assignment."""
    return tuple(index.view(-1, *[1] * (len(axes) - 1 - axis)) for axis, index in enumerate(axes))
