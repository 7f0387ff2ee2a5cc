"""What a participant lets out, by its own settings and not by the server's.

max-epsilon   the ε that all its uploads together may cost
delta         the δ that goes with it (1e-5)
protects      "sample" or "client": uploads that protect less are refused

A bound that was set by mistake must not be none: whatever looks like one of these and is not, is
refused.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, RunError
from fedgh.privacy.ledger import Ledger, OverBoundError

NodeConfig = Mapping[str, str | float | int | bool]
"""What the participant has set when it started its SuperNode."""

LEVELS = ("nothing", "sample", "client")
"""What uploads may protect, the least first."""

NEAR = 0.75
"""How alike two names are, by difflib, when one is probably a slip for the other."""

Number = Annotated[float, BeforeValidator(str), Field(gt=0, allow_inf_nan=False)]  # true is none


class PublicError(RunError):
    """A failure that the server may know in words: they say nothing of data or files here."""


class Bound(BaseModel):
    """What a participant has set for itself; other settings are for its own code."""

    model_config = ConfigDict(
        frozen=True, alias_generator=lambda name: name.replace("_", "-"), extra="ignore"
    )

    max_epsilon: Number | None = None
    delta: Annotated[Number, Field(lt=1)] = 1e-5
    protects: Literal["nothing", "sample", "client"] = "nothing"

    @property
    def least(self) -> str:
        """What uploads must protect: a bound on ε means nothing where there is no privacy."""
        limited = self.max_epsilon is not None and self.protects == "nothing"
        return "sample" if limited else self.protects


def read_bound(node: NodeConfig) -> Bound:
    """The bound among a participant's settings; ConfigError when it cannot be meant."""
    own = {key.lower().replace("_", "-"): value for key, value in node.items()}
    known = [name.replace("_", "-") for name in Bound.model_fields]
    for key in own.keys() - {*known, "state"}:  # another state folder would have another ledger
        meant = get_close_matches(key, [*known, "state"], n=1, cutoff=NEAR)
        if meant:
            raise ConfigError(f"node.conf: {key} is no setting; did you mean {meant[0]}?")
    try:
        return Bound.model_validate(own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"node.conf: {first['loc'][0]} = {first['input']!r}: {first['msg']}"
        ) from None


def keep_bound(bound: Bound, blueprint: Blueprint, states: Path) -> None:
    """Count the upload that is about to be made, or refuse to make it.

    The ledger is for all that is kept in `states`: another experiment, another federation under
    another number, another server and a new start find it as it is.
    """
    privacy = blueprint.privacy
    if bound.least == "nothing" or blueprint.method.shares == "nothing":
        return
    if privacy is None:
        raise PublicError("this participant sends nothing without privacy (privacy.protects)")
    if LEVELS.index(privacy.protects) < LEVELS.index(bound.least):
        raise PublicError(f"this participant takes part with privacy.protects = '{bound.least}'")
    if bound.max_epsilon is None:
        return
    ledger = Ledger(states / "privacy.json", max_epsilon=bound.max_epsilon, delta=bound.delta)
    try:
        ledger.spend(privacy.noise_multiplier)
    except OverBoundError as problem:
        raise PublicError(str(problem)) from None
