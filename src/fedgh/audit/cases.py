"""What is tried: which attacker, how many samples behind a class mean, how much noise."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedgh.audit.noise import OPEN, Level
from fedgh.audit.result import Extractor
from fedgh.audit.scene import Upload


@dataclass(frozen=True)
class Case:
    """An attacker, and how class means reach it."""

    extractor: Extractor = "known"
    size: int | None = None  # samples behind a mean; None = all of a class
    level: Level = OPEN

    def __str__(self) -> str:
        many = "all samples" if self.size is None else f"{self.size}"
        return f"means of {many}, extractor {self.extractor}, {self.level}"

    def row(self, sent: Upload) -> dict[str, Any]:
        """What the result says of it."""
        return {
            "extractor": self.extractor,
            "size": round(float(sent.sizes.double().mean())),
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
