"""Is this sample behind that second moment?

A client of FedGH+ sends M = Σ z zᵀ over the feature vectors z of its n samples, and the feature map
is no secret. The leverage of a candidate is h = zᵀ M⁻¹ z. A sample behind M has one of at most 1.
With fewer samples than dimensions any other vector lies outside of the span of M, where the
leverage has no bound: then M tells exactly who is behind it.

The likelihood ratio goes further. Take vectors for Gaussian with a second moment that the attacker
knows only by m vectors of its own, which have the sum M'. Then the probability of M and z with z
among the n, over that with z beside them, is

    (1 - h)^((n - d - 2) / 2) · (1 + g)^((m + n + 1) / 2)        g = zᵀ (M + M')⁻¹ z

With noise of variance σ² on M, the ratio is that of Gaussian entries: along the directions of the
attacker's own second moment they are uncorrelated, and a member moves their mean by z zᵀ.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.audit.noise import Level
from fedgh.core import private_moments
from fedgh.core.moments import STEPS, Moments, in_steps

FLOOR = 1e-8
"""Added to the diagonal of a second moment, as a share of its trace."""

ROUNDING = 1e-3
"""By which the leverage of a sample that is behind a second moment may exceed 1."""


@dataclass(frozen=True)
class Vectors:
    """Feature vectors of length one, and the classes of their samples."""

    values: Tensor  # double [n, d]
    labels: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.labels)

    def choose(self, rows: Tensor) -> "Vectors":
        """Some of them."""
        return Vectors(self.values[rows], self.labels[rows])

    @property
    def rounded(self) -> Tensor:
        """The vectors that are added up: in whole steps."""
        return in_steps(self.values) / STEPS


@dataclass(frozen=True)
class Sent:
    """A second moment as the server receives it, as a sum over n samples."""

    samples: int
    second: Tensor  # [d, d]
    std: float  # of the noise on the diagonal; above it is √2 times smaller


def send(members: Vectors, classes: int, level: Level, rng: torch.Generator) -> Sent:
    """What the server makes of the message of a client with these samples.

    Where a whole client is protected, every class counts as one sample: n times their mean stands
    for the sum.
    """
    labels = members.labels
    privacy = level.privacy(clip=1.0)
    if privacy is None:
        made, std = Moments.of(members.values, labels, classes), 0.0
    else:
        held = labels.unique().tolist()
        each = [members.choose(labels == label) for label in held]
        own = {k: Moments.of(v.values, v.labels, classes) for k, v in zip(held, each, strict=True)}
        made = private_moments.release(own, classes, privacy, privacy.normal(rng))
        std = private_moments.noise_scales(privacy, len(held))[1]
    read = Moments.read(made.payload(), classes)
    scale = len(members) / float(read.counts.sum())
    return Sent(len(members), scale * read.matrix, scale * std)


def leverage(second: Tensor, vectors: Tensor) -> Tensor:
    """zᵀ M⁻¹ z of each vector z."""
    raised = second.clone()
    raised.diagonal().add_(FLOOR * float(second.trace()))
    root = torch.linalg.cholesky(raised)
    whitened: Tensor = torch.linalg.solve_triangular(root, vectors.T, upper=False)
    return whitened.square().sum(0)


def likelihood_ratio(sent: Sent, own: Tensor, candidates: Tensor) -> Tensor:
    """The logarithm of the ratio for each candidate; `own` are the attacker's vectors [m, d]."""
    return (_of_entries if sent.std else _of_determinants)(sent, own, candidates)


def _of_determinants(sent: Sent, own: Tensor, candidates: Tensor) -> Tensor:
    both = sent.second + own.T @ own
    width = int((both.diagonal() > 0).sum())  # without features that are always zero
    inside = leverage(sent.second, candidates)
    without = (1 - inside).clamp(min=ROUNDING).log() * max(0, sent.samples - width - 2)
    beside = leverage(both, candidates).log1p() * (len(own) + sent.samples + 1)
    return torch.where(inside > 1 + ROUNDING, -torch.inf, (without + beside) / 2)


def _of_entries(sent: Sent, own: Tensor, candidates: Tensor) -> Tensor:
    """With X the entries less their expectation nΛ, and c those of z zᵀ - Λ: Σ (X c - c²/2) / v."""
    expected, basis = torch.linalg.eigh(own.T @ own / len(own))
    squares, z = (own @ basis).square(), candidates @ basis
    diagonal = torch.eye(len(basis), dtype=torch.float64)
    variance = (squares.T @ squares / len(own) - torch.diag(expected**2)).clamp(min=0)
    once = (1 + diagonal) / 2  # an entry beside the diagonal is there twice
    weights = once / (sent.samples * variance + sent.std**2 * once)
    off = basis.T @ sent.second @ basis - sent.samples * torch.diag(expected)
    known = (weights.diagonal() * expected * (off.diagonal() + expected / 2)).sum()
    pull = weights * (off + torch.diag(expected))
    ratio: Tensor = ((z @ pull) * z).sum(1) - ((z**2 @ weights) * z**2).sum(1) / 2 - known
    return ratio
