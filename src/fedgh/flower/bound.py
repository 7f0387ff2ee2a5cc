"""Limits that a participant sets itself, on what it sends and on what it may be asked.

max-epsilon      the ε that all its uploads together may cost
delta            the δ that goes with it (1e-5)
protects         "sample" or "client": uploads that protect less are refused
allow            names of code outside fedgh that a server may ask for, separated by commas
max-clients      clients of a federation (1,000,000)
max-classes      classes (10,000)
max-networks     networks in model.extractors (16)
max-rep-dim      numbers in a representation, a hidden layer or the noise of a method (4,096)
max-image-size   the side of an image (1,024)
max-epochs       epochs of a round (1,000)
max-public       public samples (100,000)
max-feature-dim  numbers in a feature vector of FedGH+ (4,096)
max-seconds      seconds for an answer (86,400)
max-experiments  experiments whose states are kept at a time (1,000)
max-rounds-kept  rounds of an experiment that the server may still ask for again (100)

A misspelt setting must not leave the participant without a limit: keys that resemble one of these
are refused.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, get_args

from pydantic import BeforeValidator, Field, ValidationError

from fedgh.choices import Protected
from fedgh.core.types import NameList
from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, RunError
from fedgh.limits import Limits, Whole
from fedgh.privacy.ledger import Ledger, OverBoundError
from fedgh.privacy.mechanism import MIN_DELTA

NodeConfig = Mapping[str, str | float | int | bool]
"""What the participant has set when it started its SuperNode."""

LEVELS = get_args(Protected)
"""What uploads may protect, the least first."""

SAFEGUARDS = ("max-epsilon", "delta", "protects", "allow", "state")
"""Settings of which a slip is looked for under any name; of limits only under max-..."""

NEAR = 0.75
"""How alike two names are, by difflib, when one is probably a slip for the other."""

Number = Annotated[
    float, BeforeValidator(str), Field(gt=0, allow_inf_nan=False)
]  # true is not a number


class PublicError(RunError):
    """A failure that the server may know in words: they say nothing of data or files here."""


class Bound(Limits):
    """What a participant has set for itself; other settings are for its own code."""

    max_epsilon: Number | None = None
    delta: Annotated[Number, Field(ge=MIN_DELTA, lt=1)] = 1e-5
    protects: Protected = "nothing"
    allow: NameList = Field(default_factory=list)
    max_seconds: Number = 86_400.0
    max_experiments: Whole = 1_000
    max_rounds_kept: Whole = 100

    @property
    def least(self) -> str:
        """What uploads must protect: a bound on ε means nothing where there is no privacy."""
        limited = self.max_epsilon is not None and self.protects == "nothing"
        return "sample" if limited else self.protects


def read_bound(node: NodeConfig) -> Bound:
    """The bound among a participant's settings; ConfigError for a misspelt key or a bad value."""
    own = {key.lower().replace("_", "-"): value for key, value in node.items()}
    if len(own) < len(node):
        raise ConfigError("node.conf: a setting is there twice, in two spellings")
    known = [name.replace("_", "-") for name in Bound.model_fields]
    for key in own.keys() - {*known, "state"}:  # another state folder would have another ledger
        alike = known if key.startswith("max") else SAFEGUARDS  # epochs may be the app's own
        meant = get_close_matches(key, alike, n=1, cutoff=NEAR)
        if meant:
            raise ConfigError(f"node.conf: {key} is no setting; did you mean {meant[0]}?")
    try:
        return Bound.model_validate(own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"node.conf: {first['loc'][0]} = {first['input']!r}: {first['msg']}"
        ) from None


def keep_bound(bound: Bound, blueprint: Blueprint, states: Path, *, releases: bool = True) -> None:
    """Count the upload that is about to be made, or refuse to make it.

    One that releases nothing new of the participant's data costs nothing.

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
    if bound.max_epsilon is None or not releases:
        return
    ledger = Ledger(states / "privacy.json", max_epsilon=bound.max_epsilon, delta=bound.delta)
    try:
        ledger.spend(privacy.noise_multiplier)
    except OverBoundError as problem:
        raise PublicError(str(problem)) from None
