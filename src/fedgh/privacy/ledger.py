"""A participant's own account of its releases, in a file that no server can reset.

One ledger counts the releases of all experiments of a participant, independent of their names. It
is kept after they end.
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

MAX_BYTES = 10_000
"""Maximum size of a ledger file, which holds two numbers."""


class OverBoundError(RunError):
    """A release would exceed the participant's bound on ε."""


class _Balance(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    releases: Annotated[int, Field(ge=0)]
    spent: Annotated[float, Field(ge=0)]  # Σ 1/z², see privacy.accounting


@dataclass(frozen=True)
class Ledger:
    """A counter of releases in a file, with an upper bound on ε."""

    path: Path
    max_epsilon: float
    delta: float

    def spend(self, noise_multiplier: float) -> None:
        """Count a release before it is made; raise OverBoundError if it would exceed the bound."""
        with self._locked():
            balance = self._read()
            spent = balance.spent + noise_multiplier**-2
            epsilon = epsilon_of(spent, self.delta)
            if epsilon > self.max_epsilon * (1 + ROUNDING):
                raise OverBoundError(
                    f"this participant's bound of ε = {self.max_epsilon:g} would be passed"
                )
            balance = _Balance(releases=balance.releases + 1, spent=spent)
            write_atomic(self.path, balance.model_dump_json(indent=2).encode() + b"\n")

    def _read(self) -> _Balance:
        if not self.path.exists():
            return _Balance(releases=0, spent=0.0)
        try:
            return _Balance.model_validate_json(read_bytes(self.path, MAX_BYTES))
        except (OSError, ValidationError) as error:
            reason = printable(str(error))
            raise RunError(f"{self.path} cannot be read ({reason}); nothing is released") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the ledger, so that two concurrent messages do not spend the same remainder."""
        with locked(self.path.with_suffix(".lock"), wait=True):
            yield
