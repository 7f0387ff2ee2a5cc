"""A participant's own account of what it has released: a file that no server can reset.

It holds one number for all experiments of a participant, whatever their names, and outlives them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgh.errors import RunError, printable
from fedgh.files import locked, read_bytes, write_atomic
from fedgh.privacy.accounting import ROUNDING, epsilon_of

MAX_PAGE = 10_000
"""Bytes of a ledger: two numbers."""


class OverBoundError(RunError):
    """A release would cost more than there is left."""


class _Balance(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    releases: Annotated[int, Field(ge=0)]
    spent: Annotated[float, Field(ge=0)]  # Σ 1/z², see privacy.accounting


@dataclass(frozen=True)
class Ledger:
    """Counts releases in a file, up to a bound."""

    path: Path
    max_epsilon: float
    delta: float

    def spend(self, noise_multiplier: float) -> None:
        """Count a release before it is made; OverBoundError when it must not be made."""
        with self._alone():
            page = self._read()
            spent = page.spent + noise_multiplier**-2
            epsilon = epsilon_of(spent, self.delta)
            if epsilon > self.max_epsilon * (1 + ROUNDING):
                raise OverBoundError(
                    f"this participant's bound of ε = {self.max_epsilon:g} would be passed"
                )
            page = _Balance(releases=page.releases + 1, spent=spent)
            write_atomic(self.path, page.model_dump_json(indent=2).encode() + b"\n")

    def _read(self) -> _Balance:
        if not self.path.exists():
            return _Balance(releases=0, spent=0.0)
        try:
            return _Balance.model_validate_json(read_bytes(self.path, MAX_PAGE))
        except (OSError, ValidationError) as error:
            why = printable(str(error))
            raise RunError(f"{self.path} cannot be read ({why}); nothing is released") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two messages at once must not both spend what is left."""
        with locked(self.path.with_suffix(".lock"), wait=True):
            yield
