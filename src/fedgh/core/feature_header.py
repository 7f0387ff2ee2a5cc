"""A header on the shared feature map, solved in closed form from moments.

`gaussian`: classes are assumed Gaussian with one covariance S. With class means μ_s and the mean m
of all samples, the logit of class s for a feature vector z is

    (z - m)ᵀ S'⁻¹ (μ_s - m) - ½ (μ_s - m)ᵀ S'⁻¹ (μ_s - m)        S' = (S + λ diag S) / (1 + λ)

where λ = shrinkage · d / n, because n samples are too few to estimate d² covariances. `ridge`, the
header of Fed3R, is a regression on one-hot targets, computed from the same moments.

A solved header expects feature vectors scaled to length √d; its weights then have an ordinary size.
"""

from math import sqrt
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from fedgh.core.moments import Moments
from fedgh.core.types import Payload

HeaderKind = Literal["gaussian", "ridge"]

RIDGE_SCALE = 16.0
"""Factor from targets in [0, 1] to logits, so that the weights tried by fusion suit both kinds."""

MIN_VARIANCE_SHARE = 1e-4
"""Variance added to each feature, as a share of the mean variance: some features are constant."""

MAX_NORM = 500.0
"""Maximum norm of the bias and of a row of weights: clients reject headers far above it."""

UNKNOWN_CLASS_LOGIT = -1e4
"""Logit of a class without samples in the header's moments."""


def solve(moments: Moments, kind: HeaderKind, shrinkage: float, noise: float = 0.0) -> Payload:
    """Return the header solved from these moments.

    Eigenvalues of the scatter below `noise` are raised to `noise`.
    """
    if kind == "ridge":
        return _header(moments.classes, *ridge(moments, shrinkage, noise))
    counts = moments.counts[moments.classes].double()
    statistics = (moments.means, counts, moments.scatter, int(counts.sum()))
    return _header(moments.classes, *gaussian(*statistics, shrinkage, noise))


def solve_with_own_covariance(pooled: Payload, own: Moments, shrinkage: float) -> Payload:
    """Return the header from pooled class means and the covariance of a client's own samples."""
    means, samples = pooled["means"].cpu().double(), int(own.counts.sum())
    equal = torch.ones(len(means), dtype=torch.float64)
    solved = gaussian(means, equal, own.scatter, samples, shrinkage)
    return _header(pooled["classes"].cpu(), *solved)


def header_logits(header: Payload, features: Tensor, num_classes: int) -> Tensor:
    """Return the logits of all classes; `UNKNOWN_CLASS_LOGIT` for classes not in the header."""
    z = normalize(features, dim=1) * sqrt(features.shape[1])
    # Not len(features): model export would record it as a constant.
    out = z.new_full((features.shape[0], num_classes), UNKNOWN_CLASS_LOGIT)
    out[:, header["classes"].long()] = linear(z, header["weight"], header["bias"])
    return out


def _header(classes: Tensor, weight: Tensor, bias: Tensor) -> Payload:
    """Return the header as a payload, scaled down if its norm exceeds `MAX_NORM`."""
    weight = weight / sqrt(weight.shape[1])
    norm = max(float(weight.norm(dim=1).max()), float(bias.norm()))
    scale = min(1.0, MAX_NORM / norm) if norm else 1.0
    parts = {"weight": scale * weight, "bias": scale * bias}
    return {"classes": classes.int(), **{name: part.float() for name, part in parts.items()}}


def gaussian(
    means: Tensor,
    counts: Tensor,
    scatter: Tensor,
    samples: int,
    shrinkage: float,
    noise: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return weight [s, d] and bias [s] of the classes with these means.

    `scatter` is the scatter of `samples` samples around their class means; these samples may differ
    from those of `means`. Eigenvalues of the scatter below `noise` are raised to `noise`.
    """
    share = shrinkage * means.shape[1] / samples
    covariance = _raise_eigenvalues(scatter, noise) / samples
    variances = covariance.diagonal().clone()
    covariance = covariance / (1 + share)
    covariance.diagonal().add_(share / (1 + share) * variances + _min_variance(variances))
    centre = (means * counts[:, None]).sum(0) / counts.sum()
    centred = means - centre
    weight = _solve(covariance, centred)
    bias = -(weight * (centred / 2 + centre)).sum(1)
    return weight, bias


def ridge(moments: Moments, shrinkage: float, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a ridge regression on one-hot targets, with an intercept."""
    counts = moments.counts[moments.classes].double()
    samples, share = float(counts.sum()), counts / counts.sum()
    centre = share @ moments.means
    targets = (moments.means - centre) * share[:, None]
    between = (moments.means - centre).T @ targets
    covariance = _raise_eigenvalues(moments.scatter, noise) / samples + between
    variances = covariance.diagonal().clone()
    strength = shrinkage * moments.width / samples * variances.mean()
    covariance.diagonal().add_(strength + _min_variance(variances))
    weight = _solve(covariance, targets)
    return RIDGE_SCALE * weight, RIDGE_SCALE * (share - weight @ centre)


def _solve(covariance: Tensor, rows: Tensor) -> Tensor:
    """Return rows times the inverse covariance, also if rounding made it indefinite."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        size = float(covariance.diagonal().abs().mean())
        positive = _raise_eigenvalues(covariance, MIN_VARIANCE_SHARE * size or 1.0)
        factor = torch.linalg.cholesky(positive)
    return torch.cholesky_solve(rows.T, factor).T


def _min_variance(variances: Tensor) -> float:
    """Return the variance to add to each feature, so that every direction has some."""
    return MIN_VARIANCE_SHARE * float(variances.mean()) or 1.0


def _raise_eigenvalues(scatter: Tensor, minimum: float) -> Tensor:
    """Return the scatter with its eigenvalues raised to at least `minimum`."""
    if not minimum:
        return scatter
    values, vectors = torch.linalg.eigh(scatter)
    raised: Tensor = vectors @ (values.clamp(min=minimum)[:, None] * vectors.T)
    return raised
