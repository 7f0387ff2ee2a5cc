"""How large an experiment may be that another party has configured.

A few characters in a configuration can ask for any amount of memory or time. What the user has
written is the user's affair; what comes from elsewhere is held to these limits before anything is
made of it. A participant on Flower sets its own.
"""

from math import prod
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedgh.errors import ConfigError

Whole = Annotated[int, BeforeValidator(str), Field(gt=0)]  # as text, so that true is no number


class LimitError(ConfigError):
    """A configuration asks for more than a limit allows."""


class Limits(BaseModel):
    """The largest values that are accepted."""

    model_config = ConfigDict(
        frozen=True, alias_generator=lambda name: name.replace("_", "-"), extra="ignore"
    )

    max_clients: Whole = 1_000_000
    max_classes: Whole = 10_000
    max_networks: Whole = 16  # in model.extractors: each of them is made
    max_rep_dim: Whole = 4_096
    max_image_size: Whole = 1_024  # the side of an image; other inputs have as many numbers
    max_epochs: Whole = 1_000
    max_public: Whole = 100_000  # samples that are known beside the private ones
    max_feature_dim: Whole = 4_096  # of a method whose clients share a feature map

    def check_shape(self, key: str, shape: tuple[int, ...]) -> None:
        """Raise LimitError for inputs with more numbers than the largest image in colour has."""
        if prod(map(abs, shape)) > 4 * self.max_image_size**2:
            self.check(key, max(map(abs, shape)), "max_image_size", always=True)

    def check(self, key: str, value: int, name: str, *, always: bool = False) -> None:
        """Raise LimitError when a setting asks for more than the limit `name`."""
        limit: int = getattr(self, name)
        if always or value > limit:
            raise LimitError(f"{key} asks for {value}, more than {name.replace('_', '-')}={limit}")
