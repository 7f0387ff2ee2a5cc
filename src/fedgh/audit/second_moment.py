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
attacker's own second moment they are uncorrelated, and a member moves their mean by z zᵀ. The class
sums have noise of their own, and are attacked beside it as class means are. (Without noise they
tell nothing that M does not tell.)
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedgh.audit import membership
from fedgh.audit.noise import Level
from fedgh.audit.scene import Geometry, Knowledge
from fedgh.core import private_moments
from fedgh.core.moments import STEPS, Moments, in_steps

FLOOR = 1e-8
"""Added to the diagonal of a second moment, as a share of its trace."""

RIDGE = 1e-3
"""Added to the spread of vectors in a class, in units of the mean variance."""

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

    @cached_property
    def rounded(self) -> Tensor:
        """The vectors that are added up: in whole steps."""
        return in_steps(self.values) / STEPS


@dataclass(frozen=True)
class SentMoment:
    """Moments as the server receives them, and the noise on them."""

    sizes: Tensor  # [classes], the samples behind them
    second: Tensor  # [d, d], as a sum over all samples
    std: float = 0.0  # of its diagonal; above it is √2 times smaller
    means: Tensor | None = None  # [classes, d], with noise
    stds: Tensor | None = None  # [classes]

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return int(self.sizes.sum())


def send(members: Vectors, classes: int, level: Level, rng: torch.Generator) -> SentMoment:
    """What the server makes of the message of a client with these samples.

    Where a whole client is protected, every class counts as one sample: n times their mean stands
    for the sum.
    """
    labels = members.labels
    sizes = labels.bincount(minlength=classes)
    privacy = level.privacy(clip=1.0)
    if privacy is None:
        made = Moments.of(members.values, labels, classes)
        return SentMoment(sizes, Moments.read(made.payload(), classes).matrix)
    held = labels.unique().tolist()
    each = [members.choose(labels == label) for label in held]
    own = {k: Moments.of(v.values, v.labels, classes) for k, v in zip(held, each, strict=True)}
    made = private_moments.release(own, classes, privacy, privacy.normal(rng))
    read = Moments.read(made.payload(), classes)
    on_sums, on_second, _ = private_moments.noise_scales(privacy, len(held))
    counts, scale = read.counts.double(), len(members) / float(read.counts.sum())
    means = read.sums / (STEPS * counts[:, None])
    return SentMoment(sizes, scale * read.matrix, scale * on_second, means, on_sums / counts)


def leverage(second: Tensor, vectors: Tensor) -> Tensor:
    """zᵀ M⁻¹ z of each vector z."""
    raised = second.clone()
    raised.diagonal().add_(FLOOR * float(second.trace()))
    root = torch.linalg.cholesky(raised)
    whitened: Tensor = torch.linalg.solve_triangular(root, vectors.T, upper=False)
    return whitened.square().sum(0)


def of_determinants(sent: SentMoment, own: Tensor, z: Tensor) -> Tensor:
    """The logarithm of the ratio without noise, up to a constant; `own` are the attacker's."""
    both = sent.second + own.T @ own
    width = int((both.diagonal() > 0).sum())  # without features that are always zero
    inside = leverage(sent.second, z)
    without = (1 - inside).clamp(min=ROUNDING).log() * max(0, sent.samples - width - 2)
    beside = leverage(both, z).log1p() * (len(own) + sent.samples + 1)
    return torch.where(inside > 1 + ROUNDING, -torch.inf, (without + beside) / 2)


@dataclass(frozen=True)
class Spread:
    """How z zᵀ spreads over the attacker's vectors, along the directions of its mean."""

    expected: Tensor  # [d], the diagonal Λ of the mean; beside it are zeros
    basis: Tensor  # [d, d], the columns are the directions
    variance: Tensor  # [d, d], of each entry

    @classmethod
    def of(cls, own: Tensor) -> "Spread":
        """Measure it."""
        expected, basis = torch.linalg.eigh(own.T @ own / len(own))
        squares = (own @ basis).square()
        variance = squares.T @ squares / len(own) - torch.diag(expected**2)
        return cls(expected, basis, variance.clamp(min=0))


def of_entries(sent: SentMoment, spread: Spread, candidates: Tensor) -> Tensor:
    """The logarithm of the ratio with noise.

    X are the entries less their expectation nΛ, c those of z zᵀ - Λ, v variances: Σ (X c - c²/2)/v.
    """
    expected, basis, n = spread.expected, spread.basis, sent.samples
    z = candidates @ basis
    diagonal = torch.eye(len(basis), dtype=torch.float64)
    once = (1 + diagonal) / 2  # the sums below meet an entry off the diagonal twice
    weights = once / (n * spread.variance + sent.std**2 * once)
    off = basis.T @ sent.second @ basis - n * torch.diag(expected)
    known = (weights.diagonal() * expected * (off.diagonal() + expected / 2)).sum()
    pull = weights * (off + torch.diag(expected))
    ratio: Tensor = ((z @ pull) * z).sum(1) - ((z**2 @ weights) * z**2).sum(1) / 2 - known
    return ratio


@dataclass(frozen=True)
class Attacker:
    """An attacker with vectors of samples that are not the victim's."""

    own: Vectors

    def likelihood_ratio(self, sent: SentMoment, candidates: Vectors) -> Tensor:
        """The logarithm of the ratio for each candidate, up to a constant."""
        if sent.means is None or sent.stds is None:
            return of_determinants(sent, self.own.rounded, candidates.rounded)
        ratio = of_entries(sent, self._spread, candidates.rounded)
        known, geometry = self._classes
        test = membership.likelihood_ratio(geometry, RIDGE)
        for place, label in enumerate(known.tolist()):
            size, those = int(sent.sizes[label]), candidates.labels == label
            if size:  # else the class mean is none, and tells nothing
                at = torch.tensor([place])
                mean = geometry.coordinates(sent.means[label : label + 1], at)[0]
                z = geometry.coordinates(candidates.rounded[those], at)
                ratio[those] += test(mean, z, size, float(sent.stds[label]))
        return ratio

    @cached_property
    def _spread(self) -> Spread:
        return Spread.of(self.own.rounded)

    @cached_property
    def _classes(self) -> tuple[Tensor, Geometry]:
        """The classes of which there are samples, and where they lie."""
        known = self.own.labels.unique()
        places = torch.searchsorted(known, self.own.labels)
        return known, Geometry.of(Knowledge(places, self.own.rounded[None]))
