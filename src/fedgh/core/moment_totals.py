"""Sums of moments under masks: moments are whole numbers already, so their sum is exact."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedgh.core.moments import STEPS, Moments
from fedgh.core.sums import ALL_SENDERS, Scale, Summation
from fedgh.core.types import Payload, Upload
from fedgh.errors import WireError


@dataclass(frozen=True)
class MomentTotals(Summation):
    """Counts, class sums and the second moment; an upload without samples adds nothing."""

    classes: int
    width: int
    scale: Scale

    @property
    def length(self) -> int:
        return sum(part.numel() for part in vars(self._zero).values())

    @property
    def largest(self) -> float:
        return float(self.scale.max_samples * STEPS**2)

    @property
    def _zero(self) -> Moments:
        return Moments.zero(self.classes, self.width)

    @override
    def encode(self, payload: Payload, samples: int) -> Tensor:
        moments = Moments.read(payload, self.classes) if len(payload["classes"]) else self._zero
        if len(payload["classes"]):
            self.scale.check_samples(int(moments.counts.sum()))
        return torch.cat([part.flatten() for part in vars(moments).values()])

    @override
    def decode(self, total: Tensor, senders: int) -> Upload:
        shapes = {name: part.shape for name, part in vars(self._zero).items()}
        parts = total.split([shape.numel() for shape in shapes.values()])
        moments = Moments(
            **{n: p.view(shape) for (n, shape), p in zip(shapes.items(), parts, strict=True)}
        )
        largest = senders * self.scale.max_samples
        counts = moments.counts  # each is checked, too: their sum may exceed 63 bits
        if bool(((counts < 0) | (counts > largest)).any()) or int(counts.sum()) > largest:
            raise WireError(f"a sum of {senders} uploads has an impossible number of samples")
        return Upload(ALL_SENDERS, 0, moments.payload())
