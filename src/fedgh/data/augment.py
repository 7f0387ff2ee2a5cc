"""Random flip, crop and erasing of a whole batch of images at once.

Each sample draws its own parameters, distributed as in the usual per-sample transforms.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def flip(x: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    chosen = torch.rand(len(x), generator=rng) < 0.5
    return torch.where(chosen[:, None, None, None], x.flip(-1), x)


def random_crop(x: Tensor, rng: torch.Generator, padding: int = 4) -> Tensor:
    """Pad each image with zeros on all sides and cut a window of the old size anywhere."""
    height, width = x.shape[-2:]
    shifts = 2 * padding + 1
    top, left = torch.randint(shifts, (2, len(x)), generator=rng)
    windows = pad(x, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(x)), :, top, left]


def erase(
    x: Tensor,
    rng: torch.Generator,
    probability: float = 0.5,
    area: tuple[float, float] = (0.02, 0.33),
    aspect: tuple[float, float] = (0.3, 3.3),
    tries: int = 10,
) -> Tensor:
    """Blank a random rectangle of each image with the given probability (Zhong et al. 2020).

    Area and (log) aspect ratio are drawn uniformly; of `tries` draws the first rectangle that
    fits is taken, and an image for which none fits stays whole.
    """
    n, _, height, width = x.shape
    draw = torch.rand(5, n, tries, generator=rng)
    size = height * width * (area[0] + (area[1] - area[0]) * draw[0])
    low, high = math.log(aspect[0]), math.log(aspect[1])
    ratio = torch.exp(low + (high - low) * draw[1])
    h, w = (size * ratio).sqrt().round(), (size / ratio).sqrt().round()
    fits = (h < height) & (w < width)
    first = fits.int().argmax(1, keepdim=True)
    chosen = fits.any(1) & (draw[4, :, 0] < probability)
    h, w, u, v = (t.gather(1, first) for t in (h, w, draw[2], draw[3]))
    top, left = (u * (height - h + 1)).floor(), (v * (width - w + 1)).floor()
    rows, columns = torch.arange(height), torch.arange(width)
    in_rows = (rows >= top) & (rows < top + h) & chosen[:, None]
    in_columns = (columns >= left) & (columns < left + w)
    return x.masked_fill(in_rows[:, None, :, None] & in_columns[:, None, None, :], 0.0)
