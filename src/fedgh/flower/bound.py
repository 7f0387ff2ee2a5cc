"""Limits that a client sets in its node.conf, on its uploads and on the server's requests.

max-epsilon      the ε that all uploads of the client together may cost
delta            the δ of this ε (1e-5)
protects         "sample" or "client": the client refuses to send uploads that protect less
allow            names of code outside fedgh that the server's settings may name, with commas
max-clients      clients of a federation (1,000,000)
max-classes      classes (10,000)
max-networks     networks in model.extractors (16)
max-rep-dim      numbers in a representation (also a shared one), a hidden layer or noise (4,096)
max-image-size   the side of an image (1,024)
max-epochs       epochs of a round, or of each phase of a method (1,000)
max-public       public samples (100,000)
max-feature-dim  numbers in a feature vector of FedGH+ (4,096)
max-seconds      seconds for an answer (86,400)
max-experiments  experiments whose states are kept at a time (1,000)
max-rounds-kept  rounds of an experiment that are kept because the server may request them again
                 (100)
min-peers        the client sends only masked uploads, and only in sums of at least so many clients,
                 itself included; it reports accuracies and no other metrics

A typing mistake must not leave the client without a limit: keys that resemble one of these are
rejected.
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
from fedgh.limits import Limits, PositiveInteger
from fedgh.privacy.ledger import Ledger, OverBoundError
from fedgh.privacy.mechanism import MIN_DELTA

NodeConfig = Mapping[str, str | float | int | bool]
"""The settings of a client's SuperNode, from its node.conf."""

LEVELS = get_args(Protected)
"""The levels of protection, from the weakest to the strongest."""

SAFEGUARDS = ("max-epsilon", "delta", "protects", "allow", "state", "min-peers")
"""Settings with which any unknown key is compared; other limits only with keys that begin `max`."""

MIN_SIMILARITY = 0.75
"""Similarity by difflib from which an unknown key counts as a typing mistake."""

# Converted from text, so that `true` is rejected: pydantic would accept it as the number 1.
PositiveNumber = Annotated[float, BeforeValidator(str), Field(gt=0, allow_inf_nan=False)]


class PublicError(RunError):
    """An error whose text the server may receive: it reveals nothing about data or files."""


class Bound(Limits):
    """The limits that a client has set; other settings of node.conf are for its own code."""

    max_epsilon: PositiveNumber | None = None
    delta: Annotated[PositiveNumber, Field(ge=MIN_DELTA, lt=1)] = 1e-5
    protects: Protected = "nothing"
    allow: NameList = Field(default_factory=list)
    max_seconds: PositiveNumber = 86_400.0
    max_experiments: PositiveInteger = 1_000
    max_rounds_kept: PositiveInteger = 100
    min_peers: PositiveInteger | None = None

    @property
    def least(self) -> str:
        """Minimum level of protection; a bound on ε implies `sample`, since ε needs privacy."""
        limited = self.max_epsilon is not None and self.protects == "nothing"
        return "sample" if limited else self.protects


def read_bound(node: NodeConfig) -> Bound:
    """Return the limits in a client's settings; raise ConfigError for a mistyped key or a value."""
    settings = {key.lower().replace("_", "-"): value for key, value in node.items()}
    if len(settings) < len(node):
        raise ConfigError("node.conf: a setting is there twice, in two spellings; delete one")
    known = [name.replace("_", "-") for name in Bound.model_fields]
    # `state` is compared, too: a mistyped key would select another folder, with another ledger.
    for key in settings.keys() - {*known, "state"}:
        candidates = known if key.startswith("max") else SAFEGUARDS  # the app may use `epochs`
        similar = get_close_matches(key, candidates, n=1, cutoff=MIN_SIMILARITY)
        if similar:
            raise ConfigError(f"node.conf: no setting '{key}'; did you mean {similar[0]}?")
    try:
        return Bound.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"node.conf: {first['loc'][0]} = {first['input']!r}: {first['msg']}"
        ) from None


def keep_bound(bound: Bound, blueprint: Blueprint, states: Path, *, releases: bool = True) -> None:
    """Count the next upload in the client's ledger; raise PublicError if it exceeds the bound.

    Call this before the upload is computed. An upload without a new release about the client's data
    (`releases` false) costs nothing.

    There is one ledger for the folder `states`. Another experiment, another federation, another
    client number, another server or a new start cannot reset it.
    """
    privacy = blueprint.privacy
    if bound.least == "nothing" or blueprint.method.shares == "nothing":
        return
    if privacy is None:
        raise PublicError(
            "this client sends nothing without privacy; the operator can set privacy.protects"
        )
    if LEVELS.index(privacy.protects) < LEVELS.index(bound.least):
        raise PublicError(f"this client takes part only with privacy.protects = '{bound.least}'")
    if bound.max_epsilon is None or not releases:
        return
    ledger = Ledger(states / "privacy.json", max_epsilon=bound.max_epsilon, delta=bound.delta)
    try:
        ledger.spend(privacy.noise_multiplier)
    except OverBoundError as problem:
        raise PublicError(str(problem)) from None
