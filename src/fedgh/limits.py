"""Limits on the size of an experiment whose configuration comes from a remote party.

A few characters in a configuration can request any amount of memory or time. The user's own
configuration is not limited. A configuration from a remote party is checked against these limits
before any part of it is created. A client on Flower can set its own limits, see `flower.bound`.
"""

from math import prod
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedgh.errors import ConfigError

# Converted from text, so that `true` is rejected: pydantic would accept it as the number 1.
PositiveInteger = Annotated[int, BeforeValidator(str), Field(gt=0)]


class LimitError(ConfigError):
    """A value in a configuration exceeds a limit."""


class Limits(BaseModel):
    """The largest accepted values, by the names of the limits in node.conf."""

    model_config = ConfigDict(
        frozen=True, alias_generator=lambda name: name.replace("_", "-"), extra="ignore"
    )

    max_clients: PositiveInteger = 1_000_000
    max_classes: PositiveInteger = 10_000
    max_networks: PositiveInteger = 16  # in model.extractors: each network is created
    max_rep_dim: PositiveInteger = 4_096
    max_image_size: PositiveInteger = 1_024  # the side of an image, see `check_shape`
    max_epochs: PositiveInteger = 1_000
    max_public: PositiveInteger = 100_000  # samples of public data
    max_feature_dim: PositiveInteger = 4_096  # outputs of a feature map

    def check_shape(self, key: str, shape: tuple[int, ...]) -> None:
        """Raise LimitError if an input has more numbers than the largest image with 4 channels."""
        if prod(map(abs, shape)) > 4 * self.max_image_size**2:
            self.check(key, max(map(abs, shape)), "max_image_size", always=True)

    def check(self, key: str, value: int, name: str, *, always: bool = False) -> None:
        """Raise LimitError if the value of a setting exceeds the limit `name`, or if `always`."""
        limit: int = getattr(self, name)
        if always or value > limit:
            raise LimitError(f"{key} asks for {value}, more than {name.replace('_', '-')}={limit}")
