"""How much one upload is protected: the noise of `fedgh.privacy`, for several ε.

The numbers of samples are public, and what is shown is one release: several cost more.
"""

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedgh.choices import Protected
from fedgh.privacy.accounting import epsilon_of, noise_multiplier
from fedgh.privacy.mechanism import Privacy

DELTA = 1e-5


class Level(BaseModel):
    """How much one upload is protected."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    protects: Protected = "nothing"
    epsilon: float = Field(0.0, ge=0, le=1e6)  # 0 where nothing is protected

    def __str__(self) -> str:
        return "no noise" if self.open else f"{self.protects}, ε = {self.epsilon:.3g}"

    @property
    def open(self) -> bool:
        """Whether nothing is protected."""
        return self.protects == "nothing"

    def privacy(self, clip: float) -> Privacy | None:
        """How one upload of vectors no longer than `clip` is made; None: as it is."""
        if self.protects == "nothing":
            return None
        return Privacy(self.protects, "public", clip, noise_multiplier(self.epsilon, DELTA, 1))

    def std(self, sizes: Tensor, clip: float, classes: int) -> Tensor:
        """The standard deviation of the noise on means of so many samples, of `classes` classes."""
        return torch.tensor(
            [self._std(size, clip, classes) for size in sizes.tolist()], dtype=torch.float64
        )

    def _std(self, size: int, clip: float, classes: int) -> float:
        privacy = self.privacy(clip)
        if privacy is None:
            return 0.0
        nothing, counts = torch.zeros(classes, 1), torch.full((classes,), size)
        return float(privacy.query(nothing, counts)[1][0])


OPEN = Level()
LEVELS = (
    OPEN,
    Level(protects="sample", epsilon=64),
    Level(protects="sample", epsilon=8),
    Level(protects="sample", epsilon=1),
    Level(protects="client", epsilon=64),
)
"""What is tried. A client's protection takes so much noise that the weakest says enough."""


def level_of(privacy: Privacy) -> Level:
    """What one release of a run costs that protects its uploads."""
    return Level(protects=privacy.protects, epsilon=epsilon_of(privacy.noise_multiplier**-2, DELTA))


def clipped(vectors: Tensor, clip: float) -> Tensor:
    """Vectors of a length of at most `clip`."""
    rows = Privacy("sample", "public", clip, 0.0).clipped(vectors.flatten(0, -2))
    return rows.view_as(vectors)
