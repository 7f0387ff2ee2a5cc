"""Differential privacy of one upload, by the Gaussian mechanism: how much noise an ε asks for.

Every sample's vector is first shrunk to a length of at most S. Standard normal noise times z times
the sensitivity is added, where z is what the analytic Gaussian mechanism (Balle and Wang 2018)
needs for (ε, δ). What is protected decides the sensitivity:

- "sample": one of the n samples of a class is replaced by another; the mean moves by 2S/n at most.
- "client": all samples of all s classes are replaced; the means together move by 2S·√s at most.
"""

import math
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from torch import Tensor

DELTA = 1e-5


class Level(BaseModel):
    """How much one upload is protected."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    protects: Literal["nothing", "sample", "client"] = "nothing"
    epsilon: float = Field(0.0, ge=0, le=1e6)  # 0 where nothing is protected

    def __str__(self) -> str:
        return "no noise" if self.open else f"{self.protects}, ε = {self.epsilon:g}"

    @property
    def open(self) -> bool:
        """Whether nothing is protected."""
        return self.protects == "nothing"

    def std(self, sizes: Tensor, clip: float, classes: int) -> Tensor:
        """The standard deviation of the noise on means of so many samples, of `classes` classes."""
        if self.open:
            return torch.zeros(len(sizes), dtype=torch.float64)
        reach = 2 * clip * noise_multiplier(self.epsilon, DELTA)
        if self.protects == "sample":
            return reach / sizes.double()
        return torch.full((len(sizes),), reach * math.sqrt(classes), dtype=torch.float64)


OPEN = Level()
LEVELS = (
    OPEN,
    Level(protects="sample", epsilon=64),
    Level(protects="sample", epsilon=8),
    Level(protects="sample", epsilon=1),
    Level(protects="client", epsilon=64),
)
"""What is tried. A client's protection takes so much noise that the weakest says enough."""


def clipped(vectors: Tensor, clip: float) -> Tensor:
    """Vectors of a length of at most `clip`."""
    lengths = vectors.norm(dim=-1, keepdim=True)
    shorter: Tensor = vectors * (clip / lengths.clamp(min=clip))
    return shorter


def noise_multiplier(epsilon: float, delta: float) -> float:
    """The least noise, in units of the sensitivity, that makes one release (ε, δ)-private."""

    def excess(log_z: float) -> float:
        z = math.exp(log_z)
        tail = math.exp(epsilon + log_ndtr(-1 / (2 * z) - epsilon * z))
        return float(ndtr(1 / (2 * z) - epsilon * z)) - tail - delta

    return math.exp(brentq(excess, math.log(1e-6), math.log(1e6), xtol=1e-12))
