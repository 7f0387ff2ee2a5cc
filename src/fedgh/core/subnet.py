"""Cuts: which numbers of a network a narrower one has, and means over those who have each.

Sizes are enough to find a cut. An axis that is as long in both networks is not cut. Of a longer
one the narrower network has a window of neighbouring units; axes that were cut alike get the same
window, so that a layer, its norm and the next layer agree. A dense layer after a flattened image
has several inputs for each channel, which stay together.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedgh.core.types import Payload
from fedgh.errors import ConfigError

Sizes = Mapping[str, tuple[int, ...]]
"""The sizes of a network's tensors, in the order of its layers."""

Cut = dict[str, tuple[Tensor, ...]]
"""For each tensor of a part and each of its axes: which indices of the whole network they are."""


def sizes_of(payload: Payload) -> Sizes:
    """Return the sizes of tensors."""
    return {name: tuple(tensor.shape) for name, tensor in payload.items()}


def cut(whole: Sizes, part: Sizes, shift: int = 0) -> Cut:
    """Return the cut whose windows start `shift` units on; past the last unit comes the first.

    ConfigError names a tensor that only one of the networks has, or of which the part has too much.
    """
    _check_names(whole, part)
    blocks = _blocks(whole)
    return {
        name: _axes(name, shape, part[name], shift, blocks.get(name, 1))
        for name, shape in whole.items()
    }


def take(payload: Payload, cut: Cut) -> Payload:
    """Return the part of a network that a cut describes, as copies; gradients pass through."""
    return {name: _select(payload[name], axes) for name, axes in cut.items()}


def put(payload: Payload, part: Payload, cut: Cut) -> Payload:
    """Return a copy of a network in which the numbers of a cut are those of `part`."""
    whole = {name: tensor.clone() for name, tensor in payload.items()}
    for name, tensor in part.items():
        whole[name][_meeting(cut[name])] = tensor
    return whole


class CoordinateMean:
    """The weighted mean of each number over those who sent it, in double precision."""

    def __init__(self, whole: Sizes) -> None:
        self._sums = {name: torch.zeros(size, dtype=torch.float64) for name, size in whole.items()}
        self._weights = {name: torch.zeros_like(total) for name, total in self._sums.items()}

    def add(self, payload: Payload, cut: Cut, weight: float) -> None:
        """Count the numbers of a part with this weight."""
        for name, tensor in payload.items():
            at = _meeting(cut[name])
            self._sums[name][at] += tensor.double() * weight
            self._weights[name][at] += weight

    def value(self, old: Payload) -> Payload:
        """Return the means; a number that was not sent is the old one, to the bit."""
        return {name: self._mean(name, tensor) for name, tensor in old.items()}

    def _mean(self, name: str, old: Tensor) -> Tensor:
        sums, weights = self._sums[name], self._weights[name]
        return torch.where(weights > 0, (sums / weights).to(old.dtype), old)


def _check_names(whole: Sizes, part: Sizes) -> None:
    for name in [*whole, *part]:
        if name not in whole or name not in part:
            has = "the whole network" if name in whole else "the part"
            raise ConfigError(f"only {has} has a tensor '{name}'")


def _blocks(whole: Sizes) -> dict[str, int]:
    """Return how many inputs of a dense layer come from one channel, where it is more than one.

    That is so where the inputs are not the outputs of any layer before, but a multiple of the
    last one's.
    """
    found: dict[str, int] = {}
    outputs = [0]
    for name, shape in whole.items():
        if len(shape) > 1:
            last = outputs[-1]
            if last and shape[1] not in outputs and shape[1] % last == 0:
                found[name] = shape[1] // last
            outputs.append(shape[0])
    return found


def _axes(
    name: str, whole: tuple[int, ...], part: tuple[int, ...], shift: int, block: int
) -> tuple[Tensor, ...]:
    """Return the windows of one tensor; `block` inputs of it belong together."""
    blocks = [block if axis == 1 else 1 for axis in range(len(whole))]
    if len(whole) != len(part) or any(k > size for size, k in zip(whole, part, strict=True)):
        raise ConfigError(f"'{name}' is {part} in the part, which does not fit into {whole}")
    if any(k < size and k % m for size, k, m in zip(whole, part, blocks, strict=True)):
        raise ConfigError(f"'{name}' has {part[1]} inputs in the part, but {block} for a channel")
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


def _meeting(axes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return indices of the numbers where the windows of all axes meet, to assign to."""
    return tuple(index.view(-1, *[1] * (len(axes) - 1 - axis)) for axis, index in enumerate(axes))
