"""A header on shared features, solved from moments.

`gaussian`: classes are taken for Gaussians with one covariance S. With class means μ_s and the mean
m of all samples, class s has for a feature vector z the logit

    (z - m)ᵀ S'⁻¹ (μ_s - m) - ½ (μ_s - m)ᵀ S'⁻¹ (μ_s - m)        S' = (S + λ diag S) / (1 + λ)

where λ = shrinkage · d / n, because n samples say little about d² covariances. `ridge`, the header
of Fed3R, is a regression on one-hot targets from the same sums.

A solved header is for feature vectors of length √d: its weights are then of usual size.
"""

from math import sqrt
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from fedgh.core.moments import Moments
from fedgh.core.types import Payload

Kind = Literal["gaussian", "ridge"]

RIDGE_SCALE = 16.0
"""From targets between 0 and 1 to logits, so that fusion can try the same weights."""

FLOOR = 1e-4
"""Variance that each feature is given, as a share of the mean: some are always zero."""

LARGEST = 500.0
"""Norm of the bias and of a row of weights, at most: other parties refuse headers far above it."""

UNKNOWN = -1e4
"""Logit of a class of which the header has no samples."""


def solve(moments: Moments, kind: Kind, shrinkage: float, noise: float = 0.0) -> Payload:
    """Return the header of these moments.

    What their scatter has below `noise` in any direction is taken for that much.
    """
    if kind == "ridge":
        return _header(moments.classes, *ridge(moments, shrinkage, noise))
    counts = moments.counts[moments.classes].double()
    about = (moments.means, counts, moments.scatter, int(counts.sum()))
    return _header(moments.classes, *gaussian(*about, shrinkage, noise))


def solve_with_own_covariance(pooled: Payload, own: Moments, shrinkage: float) -> Payload:
    """Return the header of pooled class means with the covariance of a client's own samples."""
    means, samples = pooled["means"].cpu().double(), int(own.counts.sum())
    equal = torch.ones(len(means), dtype=torch.float64)
    solved = gaussian(means, equal, own.scatter, samples, shrinkage)
    return _header(pooled["classes"].cpu(), *solved)


def header_logits(header: Payload, features: Tensor, num_classes: int) -> Tensor:
    """Return the logits of all classes; those that the header does not know are very low."""
    z = normalize(features, dim=1) * sqrt(features.shape[1])
    # Not len(features): an exporter would take it for a constant.
    out = z.new_full((features.shape[0], num_classes), UNKNOWN)
    out[:, header["classes"].long()] = linear(z, header["weight"], header["bias"])
    return out


def _header(classes: Tensor, weight: Tensor, bias: Tensor) -> Payload:
    """Return the message; logits that are sure of themselves beyond reason are all scaled down."""
    weight = weight / sqrt(weight.shape[1])
    largest = max(float(weight.norm(dim=1).max()), float(bias.norm()))
    scale = min(1.0, LARGEST / largest) if largest else 1.0
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

    `scatter` is that of `samples` samples around their class means, perhaps other ones. What it has
    below `noise` in any direction is taken for that much.
    """
    share = shrinkage * means.shape[1] / samples
    covariance = _above(scatter, noise) / samples
    variances = covariance.diagonal().clone()
    covariance = covariance / (1 + share)
    covariance.diagonal().add_(share / (1 + share) * variances + _floor(variances))
    middle = (means * counts[:, None]).sum(0) / counts.sum()
    centred = means - middle
    weight = _solved(covariance, centred)
    bias = -(weight * (centred / 2 + middle)).sum(1)
    return weight, bias


def ridge(moments: Moments, shrinkage: float, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a ridge regression on one-hot targets, with an intercept."""
    counts = moments.counts[moments.classes].double()
    samples, share = float(counts.sum()), counts / counts.sum()
    middle = share @ moments.means
    targets = (moments.means - middle) * share[:, None]
    between = (moments.means - middle).T @ targets
    covariance = _above(moments.scatter, noise) / samples + between
    variances = covariance.diagonal().clone()
    strength = shrinkage * moments.width / samples * variances.mean()
    covariance.diagonal().add_(strength + _floor(variances))
    weight = _solved(covariance, targets)
    return RIDGE_SCALE * weight, RIDGE_SCALE * (share - weight @ middle)


def _solved(covariance: Tensor, rows: Tensor) -> Tensor:
    """Return rows times the inverse of a covariance, whatever rounding has made of it."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        size = float(covariance.diagonal().abs().mean())
        factor = torch.linalg.cholesky(_above(covariance, FLOOR * size or 1.0))
    return torch.cholesky_solve(rows.T, factor).T


def _floor(variances: Tensor) -> float:
    """Return a variance that is added to each feature, so that no direction has none."""
    return FLOOR * float(variances.mean()) or 1.0


def _above(scatter: Tensor, noise: float) -> Tensor:
    """Return the scatter with its eigenvalues raised to `noise` at least."""
    if not noise:
        return scatter
    values, vectors = torch.linalg.eigh(scatter)
    raised: Tensor = vectors @ (values.clamp(min=noise)[:, None] * vectors.T)
    return raised
