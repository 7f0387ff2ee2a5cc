"""Membership inference on second moments: decide whether a sample is behind a second moment.

A client of FedGH+ sends M = Σ z zᵀ, the sum over the feature vectors z of its n samples. These
samples are called members, or samples behind M. The attacker knows the feature map. It has a
feature vector z, the candidate, and decides whether z is a member. There are three tests:

1. Leverage: h = zᵀ M⁻¹ z is at most 1 for a member. If there are fewer members than dimensions,
   every other vector is outside of the span of M and has a larger h. The attacker then finds all
   members without error.

2. Likelihood ratio without noise. It finds more members than the leverage alone. The vectors are
   assumed to be Gaussian, of dimension d. The attacker estimates their second moment from m vectors
   of its own: M' = Σ z zᵀ over these m vectors. The probability of M and z if z is a member,
   divided by the probability if z is not a member, is

       (1 - h)^((n - d - 2) / 2) · (1 + g)^((m + n + 1) / 2)        g = zᵀ (M + M')⁻¹ z

3. Likelihood ratio with noise. The entries of M with noise are assumed to be Gaussian, and
   uncorrelated in the basis of the eigenvectors of M'. If z is a member, the means of the entries
   are higher by z zᵀ. The attacker also uses the class sums, in the same way as class means,
   because their noise is independent of the noise on M. (Without noise, class sums reveal nothing
   in addition to M.)
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
"""Value added to the diagonal of a second moment to make it invertible, as a share of its trace."""

RIDGE = 1e-3
"""Value added to the variances of vectors in a class, in units of the mean variance."""

ROUNDING = 1e-3
"""Rounding error: the leverage of a member may exceed 1 by this value."""


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
    """Moments as the server receives them, and the standard deviations of their noise."""

    sizes: Tensor  # [classes], the number of samples of each class
    second: Tensor  # [d, d], the second moment as a sum over all samples
    # Standard deviation of the noise on the diagonal of `second`. Off the diagonal it is √2 times
    # smaller.
    std: float = 0.0
    means: Tensor | None = None  # [classes, d], class means with noise; None without noise
    stds: Tensor | None = None  # [classes], standard deviation of the noise on each class mean

    @property
    def samples(self) -> int:
        """The number of samples behind the moments."""
        return int(self.sizes.sum())


def send_moments(members: Vectors, classes: int, level: Level, rng: torch.Generator) -> SentMoment:
    """Return the moments that the server reads from the upload of a client with these samples.

    If the noise protects the whole client, the upload has means instead of sums: each class counts
    as one sample. The second moment and its noise are then multiplied by the mean number of samples
    per class, so that they have the size of a sum over all samples.
    """
    labels = members.labels
    sizes = labels.bincount(minlength=classes)
    privacy = level.privacy(clip=1.0)
    if privacy is None:
        exact = Moments.of(members.values, labels, classes)
        return SentMoment(sizes, Moments.read(exact.payload(), classes).matrix)
    by_class = {label: members.choose(labels == label) for label in labels.unique().tolist()}
    moments = {label: Moments.of(v.values, v.labels, classes) for label, v in by_class.items()}
    noisy = private_moments.release(moments, classes, privacy, privacy.normal(rng))
    received = Moments.read(noisy.payload(), classes)
    sums_std, second_std, _ = private_moments.noise_scales(privacy, len(moments))
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

    `own` are the attacker's vectors, `z` the candidates. A candidate whose leverage is above 1
    cannot be a member, and gets -∞.
    """
    both = sent.second + own.T @ own
    dimensions = int((both.diagonal() > 0).sum())  # features that are always zero do not count
    h, g = leverage(sent.second, z), leverage(both, z)
    log_h_factor = (1 - h).clamp(min=ROUNDING).log() * max(0, sent.samples - dimensions - 2)
    log_g_factor = g.log1p() * (len(own) + sent.samples + 1)
    return torch.where(h > 1 + ROUNDING, -torch.inf, (log_h_factor + log_g_factor) / 2)


@dataclass(frozen=True)
class EntryStatistics:
    """Mean and variance of the entries of z zᵀ over the attacker's vectors z.

    The vectors are expressed in the basis of the eigenvectors of this mean, which is therefore a
    diagonal matrix Λ.
    """

    expected: Tensor  # [d], the diagonal of Λ
    basis: Tensor  # [d, d], the columns are the eigenvectors
    variance: Tensor  # [d, d], the variance of each entry of z zᵀ

    @classmethod
    def of(cls, own: Tensor) -> "EntryStatistics":
        """Return the mean and variance over these vectors."""
        expected, basis = torch.linalg.eigh(own.T @ own / len(own))
        squares = (own @ basis).square()
        variance = squares.T @ squares / len(own) - torch.diag(expected**2)
        return cls(expected, basis, variance.clamp(min=0))


def ratio_with_noise(sent: SentMoment, entries: EntryStatistics, candidates: Tensor) -> Tensor:
    """Return the logarithm of the likelihood ratio with noise.

    It is Σ (X c - c²/2)/v over the entries on and above the diagonal, where X is the received
    second moment minus its expectation nΛ, c is z zᵀ - Λ, and v is the variance of an entry of X.
    """
    expected, basis, n = entries.expected, entries.basis, sent.samples
    z = candidates @ basis
    diagonal = torch.eye(len(basis), dtype=torch.float64)
    half_off_diagonal = (1 + diagonal) / 2
    noise_variance = sent.std**2 * half_off_diagonal
    # The sums below include each entry off the diagonal twice, so its weight is halved.
    weights = half_off_diagonal / (n * entries.variance + noise_variance)
    deviation = basis.T @ sent.second @ basis - n * torch.diag(expected)
    constant = (weights.diagonal() * expected * (deviation.diagonal() + expected / 2)).sum()
    weighted = weights * (deviation + torch.diag(expected))
    ratio: Tensor = ((z @ weighted) * z).sum(1) - ((z**2 @ weights) * z**2).sum(1) / 2 - constant
    return ratio


@dataclass(frozen=True)
class Attacker:
    """An attacker that has feature vectors of samples of other clients."""

    own: Vectors

    def likelihood_ratio(self, sent: SentMoment, candidates: Vectors) -> Tensor:
        """Return the logarithm of the likelihood ratio for each candidate, up to a constant."""
        if sent.means is None or sent.stds is None:
            return ratio_without_noise(sent, self.own.rounded, candidates.rounded)
        ratio = ratio_with_noise(sent, self._entries, candidates.rounded)
        known_classes, geometry = self._class_geometry
        score = membership.likelihood_ratio(geometry, RIDGE)
        for position, label in enumerate(known_classes.tolist()):
            size, of_class = int(sent.sizes[label]), candidates.labels == label
            if size:  # a class without samples has no mean
                row = torch.tensor([position])
                mean = geometry.coordinates(sent.means[label : label + 1], row)[0]
                z = geometry.coordinates(candidates.rounded[of_class], row)
                ratio[of_class] += score(mean, z, size, float(sent.stds[label]))
        return ratio

    @cached_property
    def _entries(self) -> EntryStatistics:
        return EntryStatistics.of(self.own.rounded)

    @cached_property
    def _class_geometry(self) -> tuple[Tensor, Geometry]:
        """The classes of the attacker's samples, and the geometry of their vectors."""
        known = self.own.labels.unique()
        positions = torch.searchsorted(known, self.own.labels)
        return known, Geometry.of(AttackerData(positions, self.own.rounded[None]))
