"""Noise levels of an audit: the noise of `fedgh.privacy` on one upload, for several ε.

The numbers of samples count as public. ε is that of one release; several releases cost more.
"""

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedgh.choices import Protected
from fedgh.privacy.accounting import epsilon_of, noise_multiplier
from fedgh.privacy.mechanism import Privacy

DELTA = 1e-5
"""δ of every noise level."""


class Level(BaseModel):
    """The protection of one upload: what is protected, and with which ε."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    protects: Protected = "nothing"
    epsilon: float = Field(0.0, ge=0, le=1e6)  # 0 where nothing is protected

    def __str__(self) -> str:
        return "no noise" if self.noiseless else f"{self.protects}, ε = {self.epsilon:.3g}"

    @property
    def noiseless(self) -> bool:
        """True if nothing is protected."""
        return self.protects == "nothing"

    def privacy(self, clip: float) -> Privacy | None:
        """Return the mechanism for one upload of vectors no longer than `clip`; None: no noise."""
        if self.protects == "nothing":
            return None
        return Privacy(self.protects, "public", clip, noise_multiplier(self.epsilon, DELTA, 1))

    def std(self, sizes: Tensor, clip: float, classes: int) -> Tensor:
        """Return the standard deviation of the noise on class means, for each number of samples.

        `classes` is the number of classes in the upload.
        """
        return torch.tensor(
            [self._std(size, clip, classes) for size in sizes.tolist()], dtype=torch.float64
        )

    def _std(self, size: int, clip: float, classes: int) -> float:
        privacy = self.privacy(clip)
        if privacy is None:
            return 0.0
        sums, counts = torch.zeros(classes, 1), torch.full((classes,), size)
        return float(privacy.query(sums, counts)[1][0])


NO_NOISE = Level()
LEVELS = (
    NO_NOISE,
    Level(protects="sample", epsilon=64),
    Level(protects="sample", epsilon=8),
    Level(protects="sample", epsilon=1),
    Level(protects="client", epsilon=64),
)
"""The levels that an audit tries. Only one protects a whole client, with a large ε: the noise that
this takes already hides the samples, so a smaller ε would show nothing more.
"""


def level_of(privacy: Privacy) -> Level:
    """Return the level of one release of a run with this mechanism."""
    return Level(protects=privacy.protects, epsilon=epsilon_of(privacy.noise_multiplier**-2, DELTA))


def clipped(vectors: Tensor, clip: float) -> Tensor:
    """Return the vectors scaled down to a length of at most `clip`."""
    rows = Privacy("sample", "public", clip, 0.0).clipped(vectors.flatten(0, -2))
    return rows.view_as(vectors)
