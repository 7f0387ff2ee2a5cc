"""The cases that an audit tries: an attacker, the number of samples behind an upload, a noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedgh.audit.noise import LEVELS, NO_NOISE, Level
from fedgh.audit.result import Extractor, MembershipResult
from fedgh.audit.roc import Scores, auc, tpr_at

FALSE_POSITIVE_RATE = 0.01
"""The rate at which the share of detected members is reported."""

ShowProgress = Callable[[str], object]
"""Function that is called with a description of each step before it starts."""


@dataclass(frozen=True)
class Effort:
    """The numbers of cases, samples and images that an audit tries."""

    sizes: Sequence[int] = (1, 2, 5, 10, 50, 200)  # samples behind a mean; all are tried last
    widths: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8)  # samples per dimension of a second moment
    reconstructions: int = 40  # means of each size from which images are reconstructed
    candidates: int = 400  # members of each size that are tested
    levels: Sequence[Level] = LEVELS


@dataclass(frozen=True)
class AttackCase:
    """An attacker, and the kind of upload that it receives."""

    extractor: Extractor = "known"
    size: int | None = None  # samples behind a mean or a second moment; None means all
    level: Level = NO_NOISE

    def __str__(self) -> str:
        samples = "all samples" if self.size is None else f"{self.size}"
        return f"{samples}, extractor {self.extractor}, {self.level}"

    def row(self, sizes: Tensor) -> dict[str, Any]:
        """Return the fields of a result that name this case; `sizes` are those of its uploads."""
        return {
            "extractor": self.extractor,
            "size": round(float(sizes.double().mean())),
            "everything": self.size is None,
            "level": self.level,
        }


@dataclass(frozen=True)
class ReconstructedImages:
    """Images that an attacker reconstructed from class means, with the true mean images."""

    labels: Tensor  # [m]
    truth: Tensor  # [m, channels, height, width]
    images: Tensor
    baseline: Tensor  # the attacker's estimates without the class means


def membership_result(
    row: dict[str, Any], against: str, members: Scores, others: Scores
) -> MembershipResult:
    """Return the result of a membership test on members and on others."""
    area = auc(members, others)
    return MembershipResult(
        **row,
        against=against,
        auc=area.value,
        low=area.low,
        high=area.high,
        tpr=tpr_at(members.values, others.values, FALSE_POSITIVE_RATE),
        members=len(members),
        others=len(others),
    )
