"""Counts, class sums and the second moment of feature vectors: sums that lose nothing.

Every feature vector has length one and is rounded to whole steps of 1/4096. So all that is added up
are whole numbers, which doubles and int64 hold exactly: the moments of pooled data are those of
their parts, bit for bit, in any order, and what was added can be taken away again.

Header (`gaussian`): classes are taken for Gaussians with one covariance S. With class means μ_s and
the mean m of all samples, class s has for a feature vector z the logit

    (z - m)ᵀ S'⁻¹ (μ_s - m) - ½ (μ_s - m)ᵀ S'⁻¹ (μ_s - m)        S' = (S + λ diag S) / (1 + λ)

where λ = shrinkage · d / n, because n samples say little about d² covariances. Fed3R's header
(`ridge`) is a regression on one-hot targets from the same sums.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.classwise import for_each_class
from fedgh.core.types import Payload, Task
from fedgh.errors import WireError

STEPS = 4096
"""Steps in the length of a feature vector."""

RIDGE_SCALE = 16.0
"""From targets between 0 and 1 to logits, so that fusion can try the same weights."""

FLOOR = 1e-6
"""Variance that each feature is given, as a share of the mean: some are always zero."""

ROUNDING = 1e-9
"""Relative error that is allowed where differences of large sums are computed."""

_PLANE = 31  # bits of a number that one int32 of a message holds


@dataclass(frozen=True)
class Moments:
    """Sums over samples, in whole steps."""

    counts: Tensor  # int64 [classes]
    sums: Tensor  # int64 [classes, d]
    second: Tensor  # int64 [d (d + 1) / 2], the upper triangle row by row

    @classmethod
    def none(cls, classes: int, width: int) -> "Moments":
        """Return the moments of no sample."""
        shapes = ((classes,), (classes, width), (width * (width + 1) // 2,))
        return cls(*(torch.zeros(shape, dtype=torch.int64) for shape in shapes))

    @classmethod
    def of(cls, features: Tensor, y: Tensor, classes: int) -> "Moments":
        """Return the moments of feature vectors [n, d] and their labels."""
        steps = in_steps(features)
        width = steps.shape[1]
        sums = steps.new_zeros(classes, width).index_add_(0, y, steps)
        rows, columns = torch.triu_indices(width, width)
        second = (steps.T @ steps)[rows, columns]  # exact: whole numbers below 2**53
        return cls(y.bincount(minlength=classes), sums.long(), second.long())

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.counts + other.counts, self.sums + other.sums, self.second + other.second
        )

    def __sub__(self, other: "Moments") -> "Moments":
        return Moments(
            self.counts - other.counts, self.sums - other.sums, self.second - other.second
        )

    @property
    def width(self) -> int:
        """Numbers in a feature vector."""
        return self.sums.shape[1]

    @property
    def classes(self) -> Tensor:
        """The labels of classes that have samples."""
        return self.counts.nonzero().flatten()

    @property
    def means(self) -> Tensor:
        """Mean feature vector of every class that has samples, of length one at most."""
        held = self.classes
        return self.sums[held].double() / (STEPS * self.counts[held, None])

    @property
    def scatter(self) -> Tensor:
        """Sum over samples of the outer product of their distance from their class mean."""
        held = self.classes
        sums = self.sums[held].double()
        between = (sums / self.counts[held, None]).T @ sums
        return (_square(self.second.double(), self.width) - between) / STEPS**2

    @property
    def matrix(self) -> Tensor:
        """The second moment [d, d] of vectors of length one."""
        return _square(self.second.double(), self.width) / STEPS**2

    def payload(self) -> Payload:
        """Return the message: rows of classes that have samples, and the triangle if any has."""
        held = self.classes
        digits = {"sums": planes(self.sums[held]), "second": planes(self.second)}
        if not len(held):
            digits = {name: numbers[:0] for name, numbers in digits.items()}
        return {"classes": held.int(), "counts": self.counts[held].int(), **digits}

    def as_means(self) -> Payload:
        """Return the message with class means in place of sums and second moment."""
        held = self.classes
        counts = self.counts[held].int()
        return {"classes": held.int(), "means": self.means.float(), "counts": counts}

    @classmethod
    def read(cls, payload: Payload, classes: int) -> "Moments":
        """Return the moments in a message; of no samples if it is empty."""
        if not len(payload["second"]) or not len(payload["sums"]):
            raise WireError("'sums' or 'second' has no digits")
        held, rows = payload["classes"].long(), whole(payload["sums"])
        moments = cls.none(classes, rows.shape[1])
        moments.counts[held] = payload["counts"].long()
        moments.sums[held] = rows
        return cls(moments.counts, moments.sums, whole(payload["second"]))

    @staticmethod
    def spec(task: Task, width: int) -> wire.Spec:
        """Declare the message."""
        some, triangle = wire.Dim("classes", task.num_classes), width * (width + 1) // 2
        return {
            **for_each_class(task, counts=wire.Field(torch.int32, (), at_least=1)),
            "sums": wire.Field(torch.int32, (wire.Dim("digits of sums", 2), some, width)),
            "second": wire.Field(torch.int32, (wire.Dim("digits of second", 2), triangle)),
        }

    def check(self) -> None:
        """Raise WireError unless samples exist that have these moments (to within rounding).

        A sum of n vectors of length one is at most n long, their squared lengths add up to at most
        n, and the scatter within classes has no negative eigenvalue.
        """
        held = self.classes
        samples = float(self.counts.sum())
        if bool((self.sums[held].double().norm(dim=1) > self.counts[held] * STEPS).any()):
            raise WireError("'sums' are longer than the sums of so many vectors of length one")
        diagonal = _square(self.second.double(), self.width).diagonal()
        if float(diagonal.sum()) > samples * STEPS**2:
            raise WireError("'second' is larger than that of so many vectors of length one")
        scatter = self.scatter
        scatter.diagonal().add_(self.width / STEPS**2 + ROUNDING * samples)
        if int(torch.linalg.cholesky_ex(scatter).info) != 0:
            raise WireError("'second' is impossible: a variance within classes would be negative")


def unit(features: Tensor) -> Tensor:
    """Return feature vectors scaled to length one, in double precision; zero stays zero."""
    exact = features.double()
    length = exact.norm(dim=1, keepdim=True)
    return torch.where(length > 0, exact / length.clamp(min=1e-300), 0.0)


def in_steps(features: Tensor) -> Tensor:
    """Return feature vectors in whole steps, rounded towards zero, as doubles.

    Towards zero, so that none becomes longer than one.
    """
    return (unit(features) * STEPS).trunc()


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
    weight = torch.cholesky_solve(centred.T, torch.linalg.cholesky(covariance)).T
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
    weight = torch.cholesky_solve(targets.T, torch.linalg.cholesky(covariance)).T
    return RIDGE_SCALE * weight, RIDGE_SCALE * (share - weight @ middle)


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


def planes(numbers: Tensor) -> Tensor:
    """Return int64 numbers as int32 digits [1 or 2, ...]: two where one is too small."""
    if not numbers.numel() or int(numbers.abs().max()) < 2**_PLANE:
        return numbers.int()[None]
    half = 2 ** (_PLANE - 1)
    low = (numbers + half) % 2**_PLANE - half
    return torch.stack([low, (numbers - low) >> _PLANE]).int()


def whole(digits: Tensor) -> Tensor:
    """Undo `planes`."""
    return sum(
        (plane.long() << (_PLANE * place) for place, plane in enumerate(digits)),
        torch.zeros(digits.shape[1:], dtype=torch.int64),
    )


def _square(triangle: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix whose upper triangle is given."""
    rows, columns = torch.triu_indices(width, width)
    out = triangle.new_zeros(width, width)
    out[rows, columns] = triangle
    out[columns, rows] = triangle
    return out
