"""What is tried: which attacker, how many samples behind an upload, how much noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedgh.audit.noise import LEVELS, OPEN, Level
from fedgh.audit.result import Extractor, Told
from fedgh.audit.roc import Scores, auc, tpr_at

FALSE_ALARMS = 0.01

Say = Callable[[str], object]
"""Called with what is being done."""


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    sizes: Sequence[int] = (1, 2, 5, 10, 50, 200)  # samples behind a mean; then all there are
    widths: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8)  # samples per dimension of a second moment
    targets: int = 40  # means of each size from which images are made
    candidates: int = 400  # members of each size that are looked for
    levels: Sequence[Level] = LEVELS


@dataclass(frozen=True)
class AttackCase:
    """An attacker, and what reaches it."""

    extractor: Extractor = "known"
    size: int | None = None  # samples behind a mean or a second moment; None = all there are
    level: Level = OPEN

    def __str__(self) -> str:
        many = "all samples" if self.size is None else f"{self.size}"
        return f"{many}, extractor {self.extractor}, {self.level}"

    def row(self, sizes: Tensor) -> dict[str, Any]:
        """What the result says of it; `sizes` are the numbers of samples behind each upload."""
        return {
            "extractor": self.extractor,
            "size": round(float(sizes.double().mean())),
            "everything": self.size is None,
            "level": self.level,
        }


@dataclass(frozen=True)
class Made:
    """Images that an attacker has made from class means, beside the truth."""

    labels: Tensor  # [m]
    truth: Tensor  # [m, channels, height, width]
    images: Tensor
    without: Tensor  # what it would have said without the means


def told(row: dict[str, Any], against: str, members: Scores, others: Scores) -> Told:
    """How well members were told from others."""
    area = auc(members, others)
    return Told(
        **row,
        against=against,
        auc=area.value,
        low=area.low,
        high=area.high,
        tpr=tpr_at(members.values, others.values, FALSE_ALARMS),
        members=len(members),
        others=len(others),
    )
