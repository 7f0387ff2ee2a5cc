"""The Gaussian mechanism on class means: how much noise there is, and why that is enough.

Every sample's vector is first shrunk to a length of at most S (`clip`). Let z be the noise
multiplier: noise of z times the L2 sensitivity makes a release 1/z-Gaussian private, and that is
what `privacy.accounting` turns into ε. A class has n of the client's training samples; which
classes a client has is public in all that follows.

protects = "sample": two data sets are neighbours when they differ in one sample, and the extractor
is the same for both. That is so for an extractor that has not seen the samples. One that was
trained on them depends on them, and that dependence is not covered.

- counts = "public": one sample is replaced by another of its class. One mean moves, by at most
  2S/n. Noise of z·2S/n on each mean of a class with n samples.
- counts = "secret": one sample is replaced by another of its class, or added, or removed. Sum and
  count are released, and the mean is their quotient. Scaled by 1/(2S) and √3/2, a replacement moves
  the pair by at most 2S/2S = 1, an addition by √(1/4 + 3/4) = 1. Noise of z·2S on the sum and of
  z·2/√3 on the count.

protects = "client": any two data sets with the same list of classes are neighbours, and nothing is
assumed of the extractor or its training. Each of the s means lies in a ball of radius S, so all of
them together move by at most 2S·√s. Noise of z·2S·√s on each; counts are not told.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

MIN_DELTA = 1e-15
"""The least δ that is offered. Noise that a computer draws ends somewhere: see `system_normal`."""

Normal = Callable[[torch.Size], Tensor]
"""Draws independent standard normal numbers, in double precision."""


@dataclass(frozen=True)
class Privacy:
    """How a client's class means are made before they leave it."""

    protects: Literal["sample", "client"]
    counts: Literal["public", "secret"]
    clip: float
    noise_multiplier: float
    unpredictable: bool = (
        False  # noise from the operating system: whoever knows the seed is curious
    )

    def within(self, largest: float) -> "Privacy":
        """The same for vectors that are never longer than `largest`."""
        return replace(self, clip=min(self.clip, largest))

    def clipped(self, values: Tensor) -> Tensor:
        """Rows of a length of at most `clip`; one that is not finite becomes zero."""
        lengths = values.norm(dim=1, keepdim=True)
        shrunk = values * (self.clip / lengths).clamp(max=1)
        return torch.where(lengths.isfinite(), shrunk, 0.0)

    def query(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """What is released, a row for each class, and the standard deviation of the noise on it."""
        reach, held = 2 * self.clip, counts.double()[:, None]
        if self.protects == "client":
            scale = torch.full_like(held, reach * math.sqrt(len(sums)))
        elif self.counts == "public":
            scale = reach / held
        else:
            scale = torch.full((sums.shape[1] + 1,), reach, dtype=torch.float64)
            scale[-1] = 2 / math.sqrt(3)
            return torch.cat([sums, held], dim=1), self.noise_multiplier * scale
        return sums / held, self.noise_multiplier * scale

    def release(self, sums: Tensor, counts: Tensor, normal: Normal) -> tuple[Tensor, Tensor]:
        """From the sums of clipped vectors and their numbers to the means and counts to send.

        All after the noise is post-processing and costs nothing. The true means lie in a ball, so
        moving the noisy ones into it brings none of them further away.
        """
        values, scale = self.query(sums, counts)
        noisy = values + scale * normal(values.shape)
        if self.protects == "client":
            return self.clipped(noisy), torch.ones_like(counts)
        if self.counts == "public":
            return self.clipped(noisy), counts
        held = noisy[:, -1:].clamp(min=1)
        return self.clipped(noisy[:, :-1] / held), held[:, 0].round().to(counts.dtype)

    def normal(self, repeatable: torch.Generator) -> Normal:
        """Where the noise comes from: the stream of a simulation, or the operating system."""
        if self.unpredictable:
            return system_normal
        return lambda shape: torch.randn(shape, generator=repeatable, dtype=torch.float64)


def system_normal(shape: torch.Size) -> Tensor:
    """Standard normal numbers from the operating system's entropy, which cannot be drawn again.

    A uniform number of 52 bits would end the tails at 8.2, and beyond that lies a probability of
    2e-16 for each number of a release: over a run, too much for a small δ. Here the probability of
    the tail is drawn as 2**-k · (1 + m / 2**52), with k from 128 bits: the tails end at 13, beyond
    which lies 1e-39.
    """
    first, second, third = np.frombuffer(os.urandom(24 * shape.numel()), np.uint64).reshape(3, -1)
    zeros = np.where(first == 0, 64 + _leading_zeros(second), _leading_zeros(first))
    fraction = 1 + (third >> np.uint64(12)).astype(np.float64) * 2.0**-52
    tail = ndtri(np.ldexp(fraction, -2 - zeros))  # the lower half
    sign = np.where(third & np.uint64(1), 1.0, -1.0)
    return torch.from_numpy(sign * tail).view(shape)


def _leading_zeros(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many zeros each word of 64 bits begins with: k with a probability of 2**-(k + 1)."""
    bits = np.frexp(words.astype(np.float64))[1].astype(np.int64)
    return 64 - bits.clip(0, 64)
