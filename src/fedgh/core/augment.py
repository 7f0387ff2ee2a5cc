"""Random flip, crop and erasing of a whole batch of images at once.

Each sample has its own random parameters, distributed as in the usual per-sample transforms. The
parameters are drawn on the CPU, so they are the same on every device; the images stay on theirs.

Images have shape [n, c, h, w]. Channels-last memory is fastest: a line of pixels is then
contiguous, and all functions here copy whole lines.
"""

import math

import torch
from torch import Tensor


def flip(x: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    n = len(x)
    chosen = torch.rand(n, generator=rng) < 0.5
    either = torch.cat([x, x.flip(-1)]).permute(0, 2, 3, 1)
    return either.index_select(0, (torch.arange(n) + n * chosen).to(x.device)).permute(0, 3, 1, 2)


def random_crop(x: Tensor, rng: torch.Generator, padding: int = 4) -> Tensor:
    """Pad each image with zeros on all sides and cut out a window of the original size."""
    n, channels, height, width = x.shape
    top, left = torch.randint(2 * padding + 1, (2, n), generator=rng)
    line = (width + 2 * padding) * channels
    padded = x.new_zeros(n, height + 2 * padding, line)
    inner = slice(padding * channels, (padding + width) * channels)
    padded[:, padding : padding + height, inner] = _lines(x)
    # Any `width` adjacent pixels are contiguous in memory: select those that form the windows.
    pieces = padded.as_strided((padded.numel() - width * channels + 1, width * channels), (1, 1))
    first = torch.arange(n) * padded[0].numel() + top * line + left * channels
    starts = first[:, None] + torch.arange(height) * line
    cut = pieces.index_select(0, starts.flatten().to(x.device))
    return cut.view(n, height, width, channels).permute(0, 3, 1, 2)


def erase(
    x: Tensor,
    rng: torch.Generator,
    probability: float = 0.5,
    area: tuple[float, float] = (0.02, 0.33),
    aspect: tuple[float, float] = (0.3, 3.3),
    tries: int = 10,
) -> Tensor:
    """Blank a random rectangle of each image with the given probability (Zhong et al. 2020).

    Area and (log) aspect ratio are drawn uniformly. The first of `tries` rectangles that fits is
    used; an image for which none fits stays unchanged.
    """
    n, channels, height, width = x.shape
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
    outside = ((columns < left) | (columns >= left + w)).float().repeat_interleave(channels, 1)
    # Only the lines that a rectangle touches are read and written.
    touched = in_rows.flatten().nonzero().flatten()
    keep = outside.index_select(0, touched // height).to(x.device)
    touched = touched.to(x.device)
    lines = _lines(x).reshape(n * height, width * channels)
    erased = lines.index_copy(0, touched, lines.index_select(0, touched).mul_(keep))
    return erased.view(n, height, width, channels).permute(0, 3, 1, 2)


def _lines(x: Tensor) -> Tensor:
    """Return the pixels as lines [n, height, width * channels]: a view if x is channels-last."""
    n, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(n, height, width * channels)
