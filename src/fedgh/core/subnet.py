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

Window = slice | Tensor
"""Adjacent units along one axis: a slice, or indices if the first unit follows the last one."""

Cut = dict[str, tuple[Window, ...]]
"""For each tensor of a part, its window in the whole network along each axis."""


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
    """Return the numbers of a network that a cut selects; gradients pass through.

    Tensors that consist of adjacent numbers are views.
    """
    return {name: _select(payload[name], axes) for name, axes in cut.items()}


def put(payload: Payload, part: Payload, cut: Cut) -> Payload:
    """Return a copy of a network with the numbers that a cut selects replaced by `part`."""
    whole = {name: tensor.clone() for name, tensor in payload.items()}
    for name, tensor in part.items():
        whole[name][_index(cut[name])] = tensor
    return whole


class CoordinateMean:
    """The weighted mean of each number over the parts that contain it, in double precision."""

    def __init__(self, whole: Sizes) -> None:
        self._sums = {name: torch.zeros(size, dtype=torch.float64) for name, size in whole.items()}
        self._weights = {name: torch.zeros_like(total) for name, total in self._sums.items()}

    def add(self, payload: Payload, cut: Cut, weight: float) -> None:
        """Add the numbers of a part with this weight."""
        for name, tensor in payload.items():
            index = _index(cut[name])
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
) -> tuple[Window, ...]:
    """Return the windows of one tensor, in which each `block` inputs stay together."""
    blocks = [block if axis == 1 else 1 for axis in range(len(whole))]
    if len(whole) != len(part) or any(k > size for size, k in zip(whole, part, strict=True)):
        raise ConfigError(f"'{name}' is {part} in the part, which does not fit into {whole}")
    if any(k < size and k % m for size, k, m in zip(whole, part, blocks, strict=True)):
        raise ConfigError(
            f"'{name}' has {part[1]} inputs in the part, no multiple of {block} per channel"
        )
    return tuple(_window(size, k, shift, m) for size, k, m in zip(whole, part, blocks, strict=True))


def _window(size: int, kept: int, shift: int, block: int) -> Window:
    start = 0 if kept == size else shift * block % size
    stop = start + kept
    return slice(start, stop) if stop <= size else torch.arange(start, stop) % size


def _select(tensor: Tensor, axes: tuple[Window, ...]) -> Tensor:
    for axis, window in enumerate(axes):
        if isinstance(window, slice):
            tensor = tensor.narrow(axis, window.start, window.stop - window.start)
        else:
            tensor = tensor.index_select(axis, window.to(tensor.device))
    return tensor.contiguous()


def _index(axes: tuple[Window, ...]) -> tuple[Window, ...]:
    """Return the windows of all axes as an index: slices, or else indices that broadcast."""
    if all(isinstance(window, slice) for window in axes):
        return axes
    return tuple(
        _indices(window).view(-1, *[1] * (len(axes) - 1 - axis)) for axis, window in enumerate(axes)
    )


def _indices(window: Window) -> Tensor:
    return torch.arange(window.start, window.stop) if isinstance(window, slice) else window
