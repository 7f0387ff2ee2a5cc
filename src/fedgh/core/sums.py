"""Sums of uploads: uploads as whole numbers whose sum is all that the server needs.

Secure aggregation adds vectors of whole numbers modulo 2**64. A client multiplies its tensors by
its weight and rounds them to steps of 2**-fraction_bits; the server divides the sum by the sum of
the weights. No sum can exceed 63 bits, so the modulus changes nothing: the result has the same bits
as a sum without masks.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from fedgh.core import wire
from fedgh.core.types import Payload, Upload
from fedgh.errors import MethodError, WireError

NUMBERS = "numbers"
"""The name of the only tensor in an upload that is added up."""

ALL_SENDERS = -1
"""The client number of an upload that is the sum of several."""

MAX_SUM = 2**63
"""No sum of honest clients reaches this number."""


@dataclass(frozen=True)
class Scale:
    """The fixed-point numbers of a federation, and the largest values that they must represent."""

    fraction_bits: int
    max_norm: float  # of a row of a tensor
    max_samples: int  # of a client

    @property
    def steps(self) -> float:
        """The number of steps in one."""
        return float(2**self.fraction_bits)

    def to_numbers(self, values: Tensor) -> Tensor:
        """Return values, in double precision, as whole numbers of steps."""
        return (values * self.steps).round().long()

    def to_values(self, numbers: Tensor) -> Tensor:
        """Return whole numbers of steps as values in double precision."""
        return numbers.double() / self.steps

    def check_row(self, name: str, tensor: Tensor) -> None:
        """Raise WireError unless every row can be represented.

        The server receives the text of the error, which therefore does not contain the norm.
        """
        norm = wire.largest_row_norm(tensor)
        if not norm <= self.max_norm:
            raise WireError(
                f"'{name}' has a row with a norm above run.max_norm = {self.max_norm:g}: secure "
                "aggregation cannot represent it"
            ) from ValueError(f"the norm is {norm:.4g}")  # for the client's own log

    def check_samples(self, samples: int) -> None:
        """Raise WireError unless the number of samples of a client can be represented."""
        if not 1 <= samples <= self.max_samples:
            raise WireError(
                f"secure aggregation can represent 1 to {self.max_samples} samples of a client"
            )


class Summation(ABC):
    """The map of a method's uploads to whole numbers, and of their sum to one upload."""

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of whole numbers of an upload."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """A bound of the absolute value of each number of one honest client."""

    @abstractmethod
    def encode(self, payload: Payload, samples: int) -> Tensor:
        """Return an upload as int64 numbers; raise WireError if they cannot represent it.

        `samples` is the number of the client's training samples.
        """

    @abstractmethod
    def decode(self, total: Tensor, senders: int) -> Upload:
        """Return an upload with which the server's update does as with all uploads of the sum.

        Raise WireError for a sum that honest clients cannot have.
        """

    @property
    def spec(self) -> wire.Spec:
        """The spec of an upload, with masks or without."""
        return {NUMBERS: wire.Field(torch.int64, (self.length,))}


@dataclass(frozen=True)
class WeightedTensors(Summation):
    """Tensors of fixed shapes, averaged with the clients' numbers of samples or equal weights."""

    fields: wire.Spec
    scale: Scale
    by_samples: bool

    @classmethod
    def of(
        cls, name: str, text: str, specs: list[wire.Spec], scale: Scale, *, by_samples: bool
    ) -> "WeightedTensors":
        """Return the summation of uploads with these specs; raise MethodError if there is none."""
        fixed = len(specs) == 1 and all(
            field.dtype.is_floating_point and all(isinstance(size, int) for size in field.shape)
            for field in specs[0].values()
        )
        if not fixed or not specs[0]:
            raise MethodError(f"the uploads of {name} ({text}) cannot be added up")
        return cls(specs[0], scale, by_samples)

    @property
    def length(self) -> int:
        return 1 + sum(map(_size, self.fields.values()))

    @property
    def largest(self) -> float:
        return self._max_weight * self.scale.max_norm * self.scale.steps + 1

    @property
    def _max_weight(self) -> int:
        return self.scale.max_samples if self.by_samples else 1

    @override
    def encode(self, payload: Payload, samples: int) -> Tensor:
        self.scale.check_samples(samples)
        weight = samples if self.by_samples else 1
        parts = [torch.tensor([weight])]
        for name in self.fields:
            self.scale.check_row(name, payload[name])
            parts.append(self.scale.to_numbers(payload[name].double().flatten() * weight))
        return torch.cat(parts)

    @override
    def decode(self, total: Tensor, senders: int) -> Upload:
        weight = int(total[0])
        if not senders <= weight <= senders * self._max_weight:
            raise WireError(f"a sum of {senders} uploads has the weight {weight}")
        parts = total[1:].split([_size(field) for field in self.fields.values()])
        payload: Payload = {}
        for (name, field), part in zip(self.fields.items(), parts, strict=True):
            values = self.scale.to_values(part) / weight
            payload[name] = values.to(field.dtype).reshape(_shape(field))
            _check_mean(name, payload[name], self.scale)
            if field.at_least is not None:  # rounding may leave the range by half a step
                payload[name] = payload[name].clamp(min=field.at_least)
        return Upload(ALL_SENDERS, weight if self.by_samples else 0, payload)


@dataclass(frozen=True)
class ClassTotals(Summation):
    """Means and counts of classes: the sums of counts, and of means times counts."""

    classes: int
    width: int
    scale: Scale

    @property
    def length(self) -> int:
        return self.classes * (1 + self.width)

    @property
    def largest(self) -> float:
        return self.scale.max_samples * self.scale.max_norm * self.scale.steps + 1

    @override
    def encode(self, payload: Payload, samples: int) -> Tensor:
        labels, own = payload["classes"].long(), payload["counts"].long()
        for count in own.tolist():
            self.scale.check_samples(count)
        self.scale.check_row("means", payload["means"])
        counts = torch.zeros(self.classes, dtype=torch.int64)
        sums = torch.zeros(self.classes, self.width, dtype=torch.int64)
        counts[labels] = own
        sums[labels] = self.scale.to_numbers(payload["means"].double() * own[:, None])
        return torch.cat([counts, sums.flatten()])

    @override
    def decode(self, total: Tensor, senders: int) -> Upload:
        counts, sums = total[: self.classes], total[self.classes :].view(self.classes, self.width)
        largest = min(senders * self.scale.max_samples, 2**31 - 1)
        if bool(((counts < 0) | (counts > largest)).any()):
            raise WireError(f"a sum of {senders} uploads has an impossible number of samples")
        if bool(sums[counts == 0].any()):
            raise WireError("a sum has means of a class without samples")
        held = counts.nonzero().flatten()
        means = (self.scale.to_values(sums[held]) / counts[held, None]).float()
        _check_mean("means", means, self.scale)
        payload = {"classes": held.int(), "means": means, "counts": counts[held].int()}
        return Upload(ALL_SENDERS, 0, payload)


def _shape(field: wire.Field) -> tuple[int, ...]:
    """Return the shape of a field, all sizes of which are fixed."""
    return tuple(size for size in field.shape if isinstance(size, int))


def _size(field: wire.Field) -> int:
    return prod(_shape(field))


def _check_mean(name: str, mean: Tensor, scale: Scale) -> None:
    """Raise WireError if a mean has a longer row than any of the uploads may have had."""
    norm = wire.largest_row_norm(mean)
    if not norm <= scale.max_norm * (1 + 1e-6):  # rounding
        raise WireError(
            f"the mean of '{name}' has a row of norm {norm:.4g}, above {scale.max_norm:g}"
        )
