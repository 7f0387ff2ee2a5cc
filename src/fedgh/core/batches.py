"""Batches taken directly from the shared tensors, without a data loader or per-sample Python."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedgh.core.augment import erase, flip, random_crop
from fedgh.core.types import CPU, Augmentation, Examples

INFERENCE_BATCH = 512
BYTE_SCALE, BYTE_OFFSET = 1 / 127.5, -1.0
"""Conversion of a byte to a network input: byte * scale + offset."""


def to_input(x: Tensor) -> Tensor:
    """Convert a batch to network input: bytes to floats in [-1, 1], images to channels-last.

    The constants are the same for every data set, because no client of a federation knows the
    pixel statistics of all clients.
    """
    if x.dtype == torch.uint8:
        x = x.float().mul_(BYTE_SCALE).add_(BYTE_OFFSET)
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def in_order(
    examples: Examples, device: torch.device = CPU, size: int = INFERENCE_BATCH
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all samples once as batches (x, y), in their stored order and without augmentation."""
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
    """Yield all samples once as batches (x, y), in random order and augmented.

    With `views` > 1, x has shape [views, batch, ...], each view augmented independently.

    A last batch of one sample is merged into the batch before it: batch normalisation cannot
    train on one sample, and dropping it would waste data.
    """
    order = examples.index[torch.randperm(len(examples), generator=rng)]
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    for rows in batches:
        x = _take(examples.x, rows).to(device)
        augmented = [_augment(x, rng, augment) for _ in range(views)]
        x = augmented[0] if views == 1 else torch.stack(augmented)
        yield x, examples.y[rows].to(device)


def forever(
    examples: Examples, size: int, rng: torch.Generator, device: torch.device = CPU
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches without end: all samples in random order, then again in another order."""
    while True:
        yield from shuffled(examples, size, rng, device=device)


def _augment(x: Tensor, rng: torch.Generator, augment: Sequence[Augmentation]) -> Tensor:
    if "flip" in augment:
        x = flip(x, rng)
    if "crop" in augment:
        x = random_crop(x, rng)
    x = to_input(x)
    return erase(x, rng) if "erase" in augment else x


def _take(x: Tensor, rows: Tensor) -> Tensor:
    """Select rows; a channels-last image is copied as one contiguous block."""
    if x.ndim != 4:
        return x.index_select(0, rows)
    return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
