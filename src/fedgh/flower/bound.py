"""What a participant lets out, by its own settings and not by the server's.

max-epsilon   the ε that all its uploads together may cost; without it nothing is bounded here
delta         the δ that goes with it (1e-5)
protects      "client": uploads that protect single samples only are refused
"""

from collections.abc import Mapping
from pathlib import Path

from fedgh.engines.host import Blueprint
from fedgh.errors import RunError
from fedgh.privacy.ledger import Ledger, OverBoundError

NodeConfig = Mapping[str, str | float | int | bool]
"""What the participant has set when it started its SuperNode."""


class PublicError(RunError):
    """A failure that the server may know in words: they say nothing of data or files here."""


def keep_bound(blueprint: Blueprint, node: NodeConfig, states: Path) -> None:
    """Count the upload that is about to be made, or refuse to make it.

    The ledger is the participant's, not the experiment's: another name of an experiment, another
    server and a new start find it as it is.
    """
    own = {key.replace("_", "-"): value for key, value in node.items()}
    if "max-epsilon" not in own or blueprint.method.shares == "nothing":
        return
    privacy = blueprint.privacy
    if privacy is None:
        raise PublicError("this participant sends nothing without privacy (privacy.protects)")
    if own.get("protects") == "client" and privacy.protects != "client":
        raise PublicError("this participant takes part with privacy.protects = 'client' only")
    ledger = Ledger(
        states / f"privacy-client-{own['client']}.json",
        max_epsilon=float(own["max-epsilon"]),
        delta=float(own.get("delta", 1e-5)),
    )
    try:
        ledger.spend(privacy.noise_multiplier)
    except OverBoundError as problem:
        raise PublicError(str(problem)) from None
