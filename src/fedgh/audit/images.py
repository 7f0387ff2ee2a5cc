"""Measures of the similarity of two images [channels, height, width] with values in [0, 1]."""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

MAX_PSNR = 100.0
"""PSNR of equal images in dB, for which the formula gives infinity."""

WINDOW = 7
"""Pixels per side of the windows of SSIM."""

GAP = 2
"""Grey pixels between two tiles."""


def psnr(one: Tensor, other: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each pair of images, in dB."""
    error = (one - other).square().mean((-3, -2, -1))
    return -10 * error.clamp(min=10 ** (-MAX_PSNR / 10)).log10()


def ssim(one: Tensor, other: Tensor) -> Tensor:
    """Return the structural similarity (Wang et al. 2004) of each pair: 1 for equal images.

    It is the mean over all 7x7 windows, with equal weights of all pixels in a window and with the
    constants of the paper.
    """
    size = min(WINDOW, *one.shape[-2:])

    def mean(values: Tensor) -> Tensor:
        return avg_pool2d(values, size, stride=1)

    m1, m2 = mean(one), mean(other)
    v1, v2 = mean(one * one) - m1**2, mean(other * other) - m2**2
    covariance = mean(one * other) - m1 * m2
    c1, c2 = 0.01**2, 0.03**2
    similarity = (
        (2 * m1 * m2 + c1) * (2 * covariance + c2) / ((m1**2 + m2**2 + c1) * (v1 + v2 + c2))
    )
    return similarity.mean((-3, -2, -1))


def tile(rows: list[list[Tensor]]) -> Tensor:
    """Return images arranged in rows and columns on grey, as bytes [height, width, channels]."""
    channels, height, width = rows[0][0].shape
    down, across = height + GAP, width + GAP
    sheet = torch.full((channels, len(rows) * down - GAP, len(rows[0]) * across - GAP), 0.5)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            sheet[:, i * down : i * down + height, j * across : j * across + width] = image
    return sheet.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).contiguous()
