"""Batches straight from the shared tensors: no loader, no per-sample Python."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedgh.core.augment import erase, flip, random_crop
from fedgh.core.types import CPU, Augmentation, Examples

INFERENCE_BATCH = 512
BYTE_SCALE, BYTE_OFFSET = 1 / 127.5, -1.0
"""From a byte to what a network receives: byte * scale + offset."""


def to_input(x: Tensor) -> Tensor:
    """What a network receives: bytes become floats in [-1, 1], images lie channels-last.

    The constants are the same for every data set: statistics of everybody's pixels are
    something that clients of a federation do not have.
    """
    if x.dtype == torch.uint8:
        x = x.float().mul_(BYTE_SCALE).add_(BYTE_OFFSET)
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def in_order(
    examples: Examples, device: torch.device = CPU, size: int = INFERENCE_BATCH
) -> Iterator[tuple[Tensor, Tensor]]:
    """All examples once, in their own order, as they are."""
    for rows in examples.index.split(size):
        yield to_input(_take(examples.x, rows).to(device)), examples.y[rows].to(device)


def shuffled(
    examples: Examples,
    size: int,
    rng: torch.Generator,
    augment: Sequence[Augmentation] = (),
    device: torch.device = CPU,
    views: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All examples once, in random order, augmented; several `views` are [views, batch, ...].

    A single left-over example joins the batch before it: batch normalisation cannot train on
    a batch of one, and dropping it would waste a sample.
    """
    order = examples.index[torch.randperm(len(examples), generator=rng)]
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    for rows in batches:
        x = _take(examples.x, rows).to(device)
        seen = [_augmented(x, rng, augment) for _ in range(views)]
        yield seen[0] if views == 1 else torch.stack(seen), examples.y[rows].to(device)


def forever(
    examples: Examples, size: int, rng: torch.Generator, device: torch.device = CPU
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end: all examples in random order, then again in another."""
    while True:
        yield from shuffled(examples, size, rng, device=device)


def _augmented(x: Tensor, rng: torch.Generator, augment: Sequence[Augmentation]) -> Tensor:
    if "flip" in augment:
        x = flip(x, rng)
    if "crop" in augment:
        x = random_crop(x, rng)
    x = to_input(x)
    return erase(x, rng) if "erase" in augment else x


def _take(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows; of images that lie channels-last each is copied in one piece."""
    if x.ndim != 4:
        return x.index_select(0, rows)
    return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
