"""Whole-batch augmentation: compared with plain implementations of the per-sample transforms."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgh.core.augment import erase, flip, random_crop
from fedgh.core.rng import stream


def images(n: int = 2000) -> Tensor:
    return torch.randint(1, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=stream(0, "images"))


def test_flip_mirrors_half_of_the_images() -> None:
    x = images()
    out = flip(x, stream(1, "flip"))
    same = (out == x).flatten(1).all(1)
    mirrored = (out == x.flip(-1)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert mirrored.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_crop_returns_every_window_of_the_padded_image_about_equally_often() -> None:
    x = images()
    out = random_crop(x, stream(1, "crop"))
    assert out.shape == x.shape
    assert out.dtype == torch.uint8
    padded = torch.nn.functional.pad(x, [4] * 4)
    seen = torch.zeros(9, 9)
    for i in range(len(x)):
        # pixels are never 0, so the zero border shows the position of the window
        rows, columns = (out[i, 0] > 0).any(1).nonzero(), (out[i, 0] > 0).any(0).nonzero()
        top = 4 - int(rows[0]) if rows[0] > 0 else 4 + 31 - int(rows[-1])
        left = 4 - int(columns[0]) if columns[0] > 0 else 4 + 31 - int(columns[-1])
        assert out[i].equal(padded[i, :, top : top + 32, left : left + 32])
        seen[top, left] += 1
    assert (seen > 0).all()  # all 81 windows occur
    assert seen.max() < 3 * len(x) / 81


def erase_one(rng: np.random.Generator) -> tuple[int, int, int, int] | None:
    """Return the rectangle that the paper's random erasing draws for one image, or None."""
    if rng.random() >= 0.5:
        return None
    for _ in range(10):
        area = 32 * 32 * rng.uniform(0.02, 0.33)
        ratio = math.exp(rng.uniform(math.log(0.3), math.log(3.3)))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < 32 and w < 32:
            return int(rng.integers(32 - h + 1)), int(rng.integers(32 - w + 1)), h, w
    return None


def test_erased_rectangles_are_distributed_as_those_of_the_per_sample_transform() -> None:
    n = 20_000
    out = erase(torch.ones(n, 1, 32, 32), stream(1, "erase"))[:, 0]
    rows, columns = (out == 0).any(2), (out == 0).any(1)
    h, w = rows.sum(1), columns.sum(1)
    assert ((out == 0).flatten(1).sum(1) == h * w).all()  # one filled rectangle per image
    hit = h > 0
    ours = torch.stack([rows.int().argmax(1), columns.int().argmax(1), h, w], 1)[hit].numpy()
    rng = np.random.default_rng(0)
    theirs = np.array([box for _ in range(n) if (box := erase_one(rng)) is not None])
    assert len(ours) / n == pytest.approx(len(theirs) / n, abs=0.015)
    for column in range(4):
        a = np.bincount(ours[:, column], minlength=33).cumsum() / len(ours)
        b = np.bincount(theirs[:, column], minlength=33).cumsum() / len(theirs)
        # Kolmogorov-Smirnov: 1.95 * sqrt(2 / n) is the 0.1% bound for two samples of n.
        assert np.abs(a - b).max() < 1.95 * math.sqrt(2 / min(len(ours), len(theirs)))


def test_erase_leaves_its_input_unchanged() -> None:
    x = torch.ones(50, 1, 32, 32)
    erase(x, stream(0, "erase"))
    assert x.eq(1).all()
