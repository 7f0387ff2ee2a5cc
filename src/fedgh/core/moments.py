"""Counts, class sums and the second moment of feature vectors: sums that lose nothing.

Every feature vector has length one and is rounded to whole steps of 1/4096. So all that is added up
are whole numbers, which doubles and int64 hold exactly: the moments of pooled data are those of
their parts, bit for bit, in any order, and what was added can be taken away again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.message import for_each_class
from fedgh.core.types import Payload, Task
from fedgh.errors import WireError

STEPS = 4096
"""Steps in the length of a feature vector."""

MAX_SAMPLES = 2**24
"""Samples of a client: sums of thousands of such clients still fit into int64."""

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

    def shrunk(self, factor: float) -> "Moments":
        """Return moments that count for so much less; classes keep one sample at least."""
        counts = (self.counts * factor).round().long().clamp(min=1) * (self.counts > 0)
        sums, second = ((t.double() * factor).round().long() for t in (self.sums, self.second))
        return Moments(counts, sums, second)

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
        """Return the moments in a message."""
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
        if samples > MAX_SAMPLES:
            raise WireError(f"'counts' of more than {MAX_SAMPLES:,} samples")
        if bool((self.sums[held].double().norm(dim=1) > self.counts[held] * STEPS).any()):
            raise WireError("'sums' are longer than the sums of so many vectors of length one")
        diagonal = _square(self.second, self.width).diagonal()
        if bool((diagonal < 0).any()) or float(diagonal.double().sum()) > samples * STEPS**2:
            raise WireError("'second' is not that of so many vectors of length one")
        scatter = self.scatter
        scatter.diagonal().add_(ROUNDING * samples)
        if int(torch.linalg.cholesky_ex(scatter).info) != 0:
            raise WireError("'second' is impossible: a variance within classes would be negative")


def unit(features: Tensor) -> Tensor:
    """Return feature vectors scaled to length one; what is zero or not finite becomes zero."""
    exact = features.double()
    length = exact.norm(dim=1, keepdim=True)
    usable = (length > 0) & length.isfinite()
    return torch.where(usable, exact / length.clamp(min=1e-300), 0.0)


def in_steps(features: Tensor) -> Tensor:
    """Return feature vectors in whole steps, rounded towards zero, as doubles.

    Towards zero, so that none becomes longer than one.
    """
    return (unit(features) * STEPS).trunc()


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
