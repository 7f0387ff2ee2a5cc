"""The Gaussian mechanism on moments: how much noise there is, and why that is enough.

Feature vectors have length one at most. Let z be the noise multiplier (see `privacy.mechanism`):
noise of z times the L2 sensitivity of all that is released. Class sums B and second moment M get
half of the squared sensitivity each. M counts as a vector by its Frobenius norm: its diagonal, and
√2 times what is above it; so the noise above the diagonal is smaller by √2.

protects = "sample", counts = "public": a sample a is replaced by a sample b of its class. B moves
by |a - b| <= 2. M moves by |aaᵀ - bbᵀ| <= √2, since (a·b)² is not negative. Noise of z·2√2 on B and
of z·2 on M: (2 / 2√2)² + (√2 / 2)² = 1.

counts = "secret": a sample may also be added or removed. Then B moves by 1, M by 1 and a count by
1. With noise of z·√(8/5) on counts: 1/8 + 1/4 + 5/8 = 1.

protects = "client": any two data sets with the same s classes are neighbours. For each class the
mean and the mean of ψψᵀ are released, with a count of one, so that nothing tells how many samples
there are. The s means move by 2√s together. M, a sum of s positive semi-definite matrices of trace
one at most, moves by √2·s.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedgh.core.moments import STEPS, Moments
from fedgh.errors import WireError
from fedgh.privacy.mechanism import Normal, Privacy

FAR = 6.0
"""Standard deviations by which noise may lengthen an upload before it is refused."""


def noise_scales(privacy: Privacy, classes: int) -> tuple[float, float, float]:
    """Return the standard deviations of the noise on sums, second moment and counts."""
    z = privacy.noise_multiplier
    if privacy.protects == "client":
        return z * 2 * math.sqrt(2 * classes), z * 2 * classes, 0.0
    return z * 2 * math.sqrt(2), z * 2, z * math.sqrt(8 / 5) if privacy.counts == "secret" else 0.0


def query(own: Mapping[int, Moments], privacy: Privacy) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts [s], sums [s, d] and the second moment's triangle, before the noise.

    `own` has the moments of each of the client's classes alone, by label.
    """
    counts = torch.stack([one.counts.sum() for one in own.values()]).double()
    sums = torch.stack([one.sums.sum(0) for one in own.values()]).double() / STEPS
    weights = 1 / counts if privacy.protects == "client" else torch.ones_like(counts)
    second = sum(w * one.second.double() for w, one in zip(weights, own.values(), strict=True))
    return counts * weights, sums * weights[:, None], torch.as_tensor(second) / STEPS**2


def release(own: Mapping[int, Moments], classes: int, privacy: Privacy, normal: Normal) -> Moments:
    """Return the moments of all classes with noise, rounded to whole steps."""
    counts, sums, second = query(own, privacy)
    on_sums, on_second, on_counts = noise_scales(privacy, len(own))
    rows, columns = torch.triu_indices(sums.shape[1], sums.shape[1])
    spread = torch.where(rows == columns, 1.0, math.sqrt(0.5)).double()
    labels = torch.tensor(list(own))
    out = Moments.none(classes, sums.shape[1])
    out.counts[labels] = (counts + on_counts * normal(counts.shape)).round().clamp(min=1).long()
    out.sums[labels] = ((sums + on_sums * normal(sums.shape)) * STEPS).round().long()
    noisy = second + on_second * spread * normal(second.shape)
    return replace(out, second=(noisy * STEPS**2).round().long())


def check(moments: Moments, privacy: Privacy) -> None:
    """Raise WireError for moments that are larger than samples and noise explain."""
    held = moments.classes
    on_sums, on_second, _ = noise_scales(privacy, len(held))
    width, counts = moments.width, moments.counts[held].double()
    lengths = moments.sums[held].double().norm(dim=1) / STEPS
    if bool((lengths > counts + on_sums * (math.sqrt(width) + FAR)).any()):
        raise WireError("'sums' are longer than so many vectors of length one with noise")
    size = float(moments.second.double().norm()) / STEPS**2
    if size > float(counts.sum()) + on_second * (width + FAR):
        raise WireError("'second' is larger than that of so many vectors of length one with noise")


def noise_terms(privacy: Privacy | None) -> Tensor:
    """Return (a, b): the second moment of a client with s classes has noise of a + b · s."""
    if privacy is None:
        return torch.zeros(2, dtype=torch.float64)
    _, one, _ = noise_scales(privacy, 1)
    return torch.tensor([0, one] if privacy.protects == "client" else [one, 0], dtype=torch.float64)


def noise_level(terms: Tensor, classes: Tensor, width: int) -> float:
    """Return about the largest eigenvalue of the noise of clients with so many classes each."""
    each = terms[0] + terms[1] * classes.double()
    return float((2 * width * each.square().sum()).sqrt())
