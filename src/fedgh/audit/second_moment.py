"""Membership inference on second moments: decide whether a sample is behind a second moment.

A client of FedGH+ sends M = Σ z zᵀ over the feature vectors z of its n samples; these samples are
"behind" M. The feature map is public. The leverage of a candidate z is h = zᵀ M⁻¹ z, at most 1 for
a sample behind M. With fewer samples than dimensions, any other vector lies outside of the span of
M, where the leverage has no bound: then M shows exactly which samples are behind it.

The likelihood ratio detects more. Assume Gaussian vectors of dimension d whose second moment the
attacker knows only from m vectors of its own, M' = Σ z zᵀ over these. The probability of M and z if
z is one of the n samples, divided by the probability if it is not, is

    (1 - h)^((n - d - 2) / 2) · (1 + g)^((m + n + 1) / 2)        g = zᵀ (M + M')⁻¹ z

With noise of variance σ² on M, the entries of M are treated as Gaussian. In the basis of the
eigenvectors of M' they are uncorrelated, and a member shifts their mean by z zᵀ. The
class sums have noise of their own, and are attacked in addition, like class means. (Without noise
they show nothing that M does not show.)
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedgh.audit import membership
from fedgh.audit.noise import Level
from fedgh.audit.scene import AttackerData, Geometry
from fedgh.core import private_moments
from fedgh.core.moments import STEPS, Moments, in_steps

FLOOR = 1e-8
"""Value added to the diagonal of a second moment, as a share of its trace."""

RIDGE = 1e-3
"""Value added to the variances of vectors in a class, in units of the mean variance."""

ROUNDING = 1e-3
"""Rounding error by which the leverage of a sample behind a second moment may exceed 1."""


@dataclass(frozen=True)
class Vectors:
    """Feature vectors of length one, and the classes of their samples."""

    values: Tensor  # double [n, d]
    labels: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.labels)

    def choose(self, rows: Tensor) -> "Vectors":
        """Return the vectors with these indices."""
        return Vectors(self.values[rows], self.labels[rows])

    @cached_property
    def rounded(self) -> Tensor:
        """The vectors rounded to whole steps, as they are summed in an upload."""
        return in_steps(self.values) / STEPS


@dataclass(frozen=True)
class SentMoment:
    """Moments as the server receives them, and the noise on them."""

    sizes: Tensor  # [classes], numbers of samples behind them
    second: Tensor  # [d, d], the second moment as a sum over all samples
    std: float = 0.0  # of the noise on its diagonal; off the diagonal it is √2 times smaller
    means: Tensor | None = None  # [classes, d], class means with noise
    stds: Tensor | None = None  # [classes], of the noise on the class means

    @property
    def samples(self) -> int:
        """The number of samples behind the moments."""
        return int(self.sizes.sum())


def send_moments(members: Vectors, classes: int, level: Level, rng: torch.Generator) -> SentMoment:
    """Return the moments that the server reads from the upload of a client with these samples.

    With protection of a whole client, each class contributes its mean as one sample. The second
    moment and its noise are then scaled up, as if they were of all n samples.
    """
    labels = members.labels
    sizes = labels.bincount(minlength=classes)
    privacy = level.privacy(clip=1.0)
    if privacy is None:
        exact = Moments.of(members.values, labels, classes)
        return SentMoment(sizes, Moments.read(exact.payload(), classes).matrix)
    of_class = {label: members.choose(labels == label) for label in labels.unique().tolist()}
    own = {label: Moments.of(v.values, v.labels, classes) for label, v in of_class.items()}
    noisy = private_moments.release(own, classes, privacy, privacy.normal(rng))
    received = Moments.read(noisy.payload(), classes)
    sums_std, second_std, _ = private_moments.noise_scales(privacy, len(own))
    counts = received.counts.double()
    scale = len(members) / float(received.counts.sum())
    means = received.sums / (STEPS * counts[:, None])
    return SentMoment(sizes, scale * received.matrix, scale * second_std, means, sums_std / counts)


def leverage(second: Tensor, vectors: Tensor) -> Tensor:
    """Return zᵀ M⁻¹ z for each vector z."""
    regularised = second.clone()
    regularised.diagonal().add_(FLOOR * float(second.trace()))
    root = torch.linalg.cholesky(regularised)
    whitened: Tensor = torch.linalg.solve_triangular(root, vectors.T, upper=False)
    return whitened.square().sum(0)


def ratio_without_noise(sent: SentMoment, own: Tensor, z: Tensor) -> Tensor:
    """Return the logarithm of the likelihood ratio without noise, up to a constant.

    `own` are the attacker's vectors, `z` the candidates'. A vector outside of the span of the
    second moment has the ratio -∞.
    """
    both = sent.second + own.T @ own
    dimensions = int((both.diagonal() > 0).sum())  # features that are always zero do not count
    in_upload = leverage(sent.second, z)
    first = (1 - in_upload).clamp(min=ROUNDING).log() * max(0, sent.samples - dimensions - 2)
    second = leverage(both, z).log1p() * (len(own) + sent.samples + 1)
    return torch.where(in_upload > 1 + ROUNDING, -torch.inf, (first + second) / 2)


@dataclass(frozen=True)
class EntryStatistics:
    """Mean and variance of the entries of z zᵀ over the attacker's vectors z.

    The coordinates are along the eigenvectors of the mean, so the mean is a diagonal matrix Λ.
    """

    expected: Tensor  # [d], the diagonal of Λ
    basis: Tensor  # [d, d], the columns are the eigenvectors
    variance: Tensor  # [d, d], of each entry

    @classmethod
    def of(cls, own: Tensor) -> "EntryStatistics":
        """Measure mean and variance over these vectors."""
        expected, basis = torch.linalg.eigh(own.T @ own / len(own))
        squares = (own @ basis).square()
        variance = squares.T @ squares / len(own) - torch.diag(expected**2)
        return cls(expected, basis, variance.clamp(min=0))


def ratio_with_noise(sent: SentMoment, entries: EntryStatistics, candidates: Tensor) -> Tensor:
    """Return the logarithm of the likelihood ratio with noise.

    It is Σ (X c - c²/2)/v over the entries on and above the diagonal, where X is the received
    second moment less its expectation nΛ, c is z zᵀ - Λ, and v is the variance of an entry of X.
    """
    expected, basis, n = entries.expected, entries.basis, sent.samples
    z = candidates @ basis
    diagonal = torch.eye(len(basis), dtype=torch.float64)
    once = (1 + diagonal) / 2  # the sums below include each entry off the diagonal twice
    weights = once / (n * entries.variance + sent.std**2 * once)
    deviation = basis.T @ sent.second @ basis - n * torch.diag(expected)
    constant = (weights.diagonal() * expected * (deviation.diagonal() + expected / 2)).sum()
    weighted = weights * (deviation + torch.diag(expected))
    ratio: Tensor = ((z @ weighted) * z).sum(1) - ((z**2 @ weights) * z**2).sum(1) / 2 - constant
    return ratio


@dataclass(frozen=True)
class Attacker:
    """An attacker that has vectors of other clients' samples."""

    own: Vectors

    def likelihood_ratio(self, sent: SentMoment, candidates: Vectors) -> Tensor:
        """Return the logarithm of the likelihood ratio for each candidate, up to a constant."""
        if sent.means is None or sent.stds is None:
            return ratio_without_noise(sent, self.own.rounded, candidates.rounded)
        ratio = ratio_with_noise(sent, self._entries, candidates.rounded)
        known_classes, geometry = self._classes
        score = membership.likelihood_ratio(geometry, RIDGE)
        for position, label in enumerate(known_classes.tolist()):
            size, of_class = int(sent.sizes[label]), candidates.labels == label
            if size:  # without samples there is no class mean
                row = torch.tensor([position])
                mean = geometry.coordinates(sent.means[label : label + 1], row)[0]
                z = geometry.coordinates(candidates.rounded[of_class], row)
                ratio[of_class] += score(mean, z, size, float(sent.stds[label]))
        return ratio

    @cached_property
    def _entries(self) -> EntryStatistics:
        return EntryStatistics.of(self.own.rounded)

    @cached_property
    def _classes(self) -> tuple[Tensor, Geometry]:
        """The classes of the attacker's samples, and their means and covariance."""
        known = self.own.labels.unique()
        positions = torch.searchsorted(known, self.own.labels)
        return known, Geometry.of(AttackerData(positions, self.own.rounded[None]))
