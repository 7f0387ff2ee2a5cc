"""The Gaussian mechanism on class means: the scale of the noise, with proof of the sensitivity.

Every sample's vector is first scaled down to a length of at most S (`clip`). Let z be the noise
multiplier: noise of z times the L2 sensitivity makes a release 1/z-Gaussian private, which
`privacy.accounting` converts to ε. Let n be the number of a client's training samples of a class.
The list of classes of a client is public throughout.

protects = "sample": two data sets are neighbours if they differ in one sample and the extractor is
the same for both. This holds for an extractor that was not trained on the samples. An extractor
that was trained on them depends on them, and this dependence is not covered.

- counts = "public": one sample is replaced by another of its class. One mean moves by at most 2S/n.
  The noise on the mean of a class with n samples is z·2S/n.
- counts = "secret": one sample is replaced by another of its class, added or removed. Sum and count
  are released, and the mean is their quotient. If sum and count are scaled by 1/(2S) and √3/2, a
  replacement moves the pair by at most 2S/2S = 1, an addition by √(1/4 + 3/4) = 1. The noise is
  z·2S on the sum and z·2/√3 on the count.

protects = "client": any two data sets with the same list of classes are neighbours, without an
assumption about the extractor or its training. Each of the s means lies in a ball of radius S, so
all together move by at most 2S·√s. The noise is z·2S·√s on each mean; counts are not sent.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MIN_DELTA = 1e-15
"""Minimum δ: the noise that a computer draws has finite tails, see `system_normal`."""

Normal = Callable[[torch.Size], Tensor]
"""Function of a shape that draws independent standard normal numbers in double precision."""


@dataclass(frozen=True)
class Privacy:
    """The Gaussian mechanism that a client applies to its class means before it sends them."""

    protects: Literal["sample", "client"]
    counts: Literal["public", "secret"]
    clip: float
    noise_multiplier: float
    # True: noise from the operating system, since a server that knows the seed could repeat it
    unpredictable: bool = False

    def with_max_norm(self, max_norm: float) -> "Privacy":
        """Return the mechanism for vectors whose length never exceeds `max_norm`."""
        return replace(self, clip=min(self.clip, max_norm))

    def clipped(self, values: Tensor) -> Tensor:
        """Return the rows shortened to length `clip` at most; rows that are not finite become 0."""
        lengths = values.norm(dim=1, keepdim=True)
        shrunk = values * (self.clip / lengths).clamp(max=1)
        return torch.where(lengths.isfinite(), shrunk, 0.0)

    def query(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values to release, one row per class, and the noise's standard deviations."""
        diameter, samples = 2 * self.clip, counts.double()[:, None]
        if self.protects == "client":
            scale = torch.full_like(samples, diameter * math.sqrt(len(sums)))
        elif self.counts == "public":
            scale = diameter / samples
        else:
            scale = torch.full((sums.shape[1] + 1,), diameter, dtype=torch.float64)
            scale[-1] = 2 / math.sqrt(3)
            return torch.cat([sums, samples], dim=1), self.noise_multiplier * scale
        return sums / samples, self.noise_multiplier * scale

    def release(self, sums: Tensor, counts: Tensor, normal: Normal) -> tuple[Tensor, Tensor]:
        """Return noisy means and counts to send, from the sums and numbers of clipped vectors.

        All steps after the noise are post-processing and cost no privacy. The true means lie in a
        ball, so projecting the noisy means onto the ball never increases their error.
        """
        values, scale = self.query(sums, counts)
        noisy = values + scale * normal(values.shape)
        if self.protects == "client":
            return self.clipped(noisy), torch.ones_like(counts)
        if self.counts == "public":
            return self.clipped(noisy), counts
        samples = noisy[:, -1:].clamp(min=1)
        return self.clipped(noisy[:, :-1] / samples), samples[:, 0].round().to(counts.dtype)

    def normal(self, repeatable: torch.Generator) -> Normal:
        """Return the source of noise: the operating system, or a simulation's random stream."""
        if self.unpredictable:
            return system_normal
        return lambda shape: torch.randn(shape, generator=repeatable, dtype=torch.float64)


def system_normal(shape: torch.Size) -> Tensor:
    """Return standard normal numbers from the operating system's entropy; they are not repeatable.

    A uniform number of 52 bits would end the tails at 8.2. The probability beyond that is 2e-16
    for each number of a release: over a run, too much for a small δ. Here the probability of the
    tail is drawn as 2**-k · (1 + m / 2**52), with k from 128 bits. The tails then end at 13, with a
    probability of 1e-39 beyond.
    """
    from scipy.special import ndtri  # slow to import, and only needed here

    first, second, third = np.frombuffer(os.urandom(24 * shape.numel()), np.uint64).reshape(3, -1)
    zeros = np.where(first == 0, 64 + _leading_zeros(second), _leading_zeros(first))
    fraction = 1 + (third >> np.uint64(12)).astype(np.float64) * 2.0**-52
    tail = ndtri(np.ldexp(fraction, -2 - zeros))  # in the lower half
    sign = np.where(third & np.uint64(1), 1.0, -1.0)
    return torch.from_numpy(sign * tail).view(shape)


def _leading_zeros(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of leading zeros of each 64-bit word: k with probability 2**-(k + 1)."""
    bits = np.frexp(words.astype(np.float64))[1].astype(np.int64)
    return 64 - bits.clip(0, 64)
