"""Moments: counts, class sums and the second moment of feature vectors, as exact sums.

Every feature vector is scaled to length one and rounded to whole steps of 1/4096. All sums are
therefore sums of whole numbers, which doubles and int64 hold exactly. The moments of pooled data
equal the sum of the moments of its parts, bit for bit, in any order; added moments can be
subtracted again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.message import for_each_class
from fedgh.core.types import Payload, Task
from fedgh.errors import WireError

STEPS = 4096
"""Number of steps in a length of one."""

MAX_SAMPLES = 2**24
"""Maximum samples of a client: sums over thousands of such clients still fit into int64."""

ROUNDING = 1e-9
"""Relative tolerance for rounding in differences of large sums."""

_DIGIT_BITS = 31  # bits of a number per int32 of a message


@dataclass(frozen=True)
class Moments:
    """Sums over samples, in units of steps."""

    counts: Tensor  # int64 [classes]
    sums: Tensor  # int64 [classes, d]
    second: Tensor  # int64 [d (d + 1) / 2], the upper triangle row by row

    @classmethod
    def zero(cls, classes: int, width: int) -> "Moments":
        """Return the moments of an empty set of samples."""
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

    def shrunk(self, factor: float) -> "Moments":
        """Return the moments scaled by `factor` < 1; each class keeps at least one sample."""
        counts = (self.counts * factor).round().long().clamp(min=1) * (self.counts > 0)
        sums, second = ((t.double() * factor).round().long() for t in (self.sums, self.second))
        return Moments(counts, sums, second)

    def __sub__(self, other: "Moments") -> "Moments":
        return Moments(
            self.counts - other.counts, self.sums - other.sums, self.second - other.second
        )

    @property
    def width(self) -> int:
        """Dimension d of the feature vectors."""
        return self.sums.shape[1]

    @property
    def classes(self) -> Tensor:
        """Labels of the classes that have samples."""
        return self.counts.nonzero().flatten()

    @property
    def means(self) -> Tensor:
        """Mean feature vector of each class that has samples; its length is at most one."""
        held = self.classes
        return self.sums[held].double() / (STEPS * self.counts[held, None])

    @property
    def scatter(self) -> Tensor:
        """Sum over samples of the outer product of their difference from their class mean."""
        held = self.classes
        sums = self.sums[held].double()
        between = (sums / self.counts[held, None]).T @ sums
        return (_square(self.second.double(), self.width) - between) / STEPS**2

    @property
    def matrix(self) -> Tensor:
        """Second moment [d, d] of the vectors of length one."""
        return _square(self.second.double(), self.width) / STEPS**2

    def payload(self) -> Payload:
        """Return the message: rows of the classes with samples; nothing if there are no samples."""
        held = self.classes
        digits = {"sums": to_digits(self.sums[held]), "second": to_digits(self.second)}
        if not len(held):
            digits = {name: numbers[:0] for name, numbers in digits.items()}
        return {"classes": held.int(), "counts": self.counts[held].int(), **digits}

    def as_means(self) -> Payload:
        """Return a message with class means in place of sums and second moment."""
        held = self.classes
        counts = self.counts[held].int()
        return {"classes": held.int(), "means": self.means.float(), "counts": counts}

    @classmethod
    def read(cls, payload: Payload, classes: int) -> "Moments":
        """Return the moments in a message; raise WireError if it has no digits."""
        if not len(payload["second"]) or not len(payload["sums"]):
            raise WireError("'sums' or 'second' has no digits")
        held, rows = payload["classes"].long(), from_digits(payload["sums"])
        moments = cls.zero(classes, rows.shape[1])
        moments.counts[held] = payload["counts"].long()
        moments.sums[held] = rows
        return cls(moments.counts, moments.sums, from_digits(payload["second"]))

    @staticmethod
    def spec(task: Task, width: int) -> wire.Spec:
        """Return the spec of the message."""
        held, triangle = wire.Dim("classes", task.num_classes), width * (width + 1) // 2
        return {
            **for_each_class(task, counts=wire.Field(torch.int32, (), at_least=1)),
            "sums": wire.Field(torch.int32, (wire.Dim("digits of sums", 2), held, width)),
            "second": wire.Field(torch.int32, (wire.Dim("digits of second", 2), triangle)),
        }

    def check(self, max_samples: int = MAX_SAMPLES) -> None:
        """Raise WireError unless some set of samples has these moments, up to rounding.

        The sum of n vectors of length one has length at most n, the sum of their squared lengths is
        at most n, and the scatter within classes has no negative eigenvalue.
        """
        held = self.classes
        samples = float(self.counts.sum())
        if samples > max_samples:
            raise WireError(f"'counts' add up to more than {max_samples:,} samples")
        if bool((self.sums[held].double().norm(dim=1) > self.counts[held] * STEPS).any()):
            raise WireError("'sums' are longer than 'counts' vectors of length one allow")
        diagonal = _square(self.second, self.width).diagonal()
        if bool((diagonal < 0).any()) or float(diagonal.double().sum()) > samples * STEPS**2:
            raise WireError(
                "'second' is impossible: its diagonal does not fit 'counts' vectors of length one"
            )
        scatter = self.scatter
        scatter.diagonal().add_(ROUNDING * samples)
        if int(torch.linalg.cholesky_ex(scatter).info) != 0:
            raise WireError("'second' is impossible: a variance within classes would be negative")


def unit(features: Tensor) -> Tensor:
    """Return feature vectors scaled to length one; zero if the length is zero or not finite."""
    exact = features.double()
    length = exact.norm(dim=1, keepdim=True)
    usable = (length > 0) & length.isfinite()
    return torch.where(usable, exact / length.clamp(min=1e-300), 0.0)


def in_steps(features: Tensor) -> Tensor:
    """Return feature vectors of length one in whole steps, as doubles.

    Numbers are rounded towards zero, so that no vector becomes longer than one.
    """
    return (unit(features) * STEPS).trunc()


def to_digits(numbers: Tensor) -> Tensor:
    """Return int64 numbers as int32 digits [1 or 2, ...]: two if one is too small."""
    if not numbers.numel() or int(numbers.abs().max()) < 2**_DIGIT_BITS:
        return numbers.int()[None]
    half = 2 ** (_DIGIT_BITS - 1)
    low = (numbers + half) % 2**_DIGIT_BITS - half
    return torch.stack([low, (numbers - low) >> _DIGIT_BITS]).int()


def from_digits(digits: Tensor) -> Tensor:
    """Undo `to_digits`."""
    return sum(
        (plane.long() << (_DIGIT_BITS * position) for position, plane in enumerate(digits)),
        torch.zeros(digits.shape[1:], dtype=torch.int64),
    )


def _square(triangle: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix with this upper triangle."""
    rows, columns = torch.triu_indices(width, width)
    out = triangle.new_zeros(width, width)
    out[rows, columns] = triangle
    out[columns, rows] = triangle
    return out
