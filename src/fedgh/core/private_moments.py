"""The Gaussian mechanism on moments: the scale of the noise, with proof of the sensitivity.

Feature vectors have length at most one. Let z be the noise multiplier (see `privacy.mechanism`):
the noise is z times the L2 sensitivity of the whole release. Class sums B and second moment M get
half of the squared sensitivity each. M is treated as a vector with its Frobenius norm: the
diagonal, and √2 times the triangle above it. The noise above the diagonal is thus smaller by √2.

protects = "sample", counts = "public": a sample a is replaced by a sample b of its class. B moves
by |a - b| <= 2. M moves by |aaᵀ - bbᵀ| <= √2, since (a·b)² >= 0. The noise is z·2√2 on B and z·2 on
M: (2 / 2√2)² + (√2 / 2)² = 1.

counts = "secret": a sample may also be added or removed. Then B, M and one count each move by at
most 1. With noise of z·√(8/5) on counts: 1/8 + 1/4 + 5/8 = 1.

protects = "client": any two data sets with the same s classes are neighbours. For each class the
mean of the feature vectors ψ and the mean of ψψᵀ are released, with a count of one, so the number
of samples stays secret. The s means together move by at most 2√s. M, a sum of s positive
semi-definite matrices of trace at most one, moves by at most √2·s.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedgh.core.moments import STEPS, Moments
from fedgh.errors import WireError
from fedgh.privacy.mechanism import Normal, Privacy

MAX_NOISE_DEVIATIONS = 6.0
"""Standard deviations by which noise may lengthen an upload before it is rejected."""


def noise_scales(privacy: Privacy, classes: int) -> tuple[float, float, float]:
    """Return the standard deviations of the noise on sums, second moment and counts."""
    z = privacy.noise_multiplier
    if privacy.protects == "client":
        return z * 2 * math.sqrt(2 * classes), z * 2 * classes, 0.0
    return z * 2 * math.sqrt(2), z * 2, z * math.sqrt(8 / 5) if privacy.counts == "secret" else 0.0


def query(own: Mapping[int, Moments], privacy: Privacy) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values to release, without noise: counts [s], sums [s, d], triangle of M.

    `own` maps each label of the client to the moments of that class alone.
    """
    counts = torch.stack([moments.counts.sum() for moments in own.values()]).double()
    sums = torch.stack([moments.sums.sum(0) for moments in own.values()]).double() / STEPS
    weights = 1 / counts if privacy.protects == "client" else torch.ones_like(counts)
    second = sum(w * m.second.double() for w, m in zip(weights, own.values(), strict=True))
    return counts * weights, sums * weights[:, None], torch.as_tensor(second) / STEPS**2


def release(own: Mapping[int, Moments], classes: int, privacy: Privacy, normal: Normal) -> Moments:
    """Return the noisy moments of all classes, rounded to whole steps."""
    counts, sums, second = query(own, privacy)
    on_sums, on_second, on_counts = noise_scales(privacy, len(own))
    rows, columns = torch.triu_indices(sums.shape[1], sums.shape[1])
    spread = torch.where(rows == columns, 1.0, math.sqrt(0.5)).double()
    labels = torch.tensor(list(own))
    out = Moments.zero(classes, sums.shape[1])
    out.counts[labels] = (counts + on_counts * normal(counts.shape)).round().clamp(min=1).long()
    out.sums[labels] = ((sums + on_sums * normal(sums.shape)) * STEPS).round().long()
    noisy = second + on_second * spread * normal(second.shape)
    return replace(out, second=(noisy * STEPS**2).round().long())


def check(moments: Moments, privacy: Privacy) -> None:
    """Raise WireError if the moments are larger than samples and noise can explain."""
    held = moments.classes
    on_sums, on_second, _ = noise_scales(privacy, len(held))
    width, counts = moments.width, moments.counts[held].double()
    lengths = moments.sums[held].double().norm(dim=1) / STEPS
    if bool((lengths > counts + on_sums * (math.sqrt(width) + MAX_NOISE_DEVIATIONS)).any()):
        raise WireError("'sums' are longer than 'counts' vectors of length one with noise allow")
    size = float(moments.second.double().norm()) / STEPS**2
    if size > float(counts.sum()) + on_second * (width + MAX_NOISE_DEVIATIONS):
        raise WireError("'second' is larger than 'counts' vectors of length one with noise allow")


def noise_terms(privacy: Privacy | None) -> Tensor:
    """Return (a, b) such that a client with s classes has noise a + b · s on its second moment."""
    if privacy is None:
        return torch.zeros(2, dtype=torch.float64)
    _, scale, _ = noise_scales(privacy, 1)
    terms = [0, scale] if privacy.protects == "client" else [scale, 0]
    return torch.tensor(terms, dtype=torch.float64)


def noise_level(terms: Tensor, classes: Tensor, width: int) -> float:
    """Return the approximate largest eigenvalue of the summed noise, from each client's classes.

    `classes` has the number of classes of each client.
    """
    scales = terms[0] + terms[1] * classes.double()
    return float((2 * width * scales.square().sum()).sqrt())
