"""Renamed keys (old name: current name), so that files of earlier versions can be read."""

from collections.abc import Mapping
from typing import Any

SETTINGS = {"model.zoo": "model.extractors", "run.largest_norm": "run.max_norm"}
"""Configuration keys that were renamed in version 0.2."""

ROUND = {
    "evaluation_accuracy": "validation_accuracy",
    "evaluation_accuracy_per_client": "validation_accuracy_per_client",
    "measured": "method_metrics",
    "set_aside": "excluded",
}
"""Keys of rounds.jsonl that were renamed after format version 1."""

SUMMARY = {
    "final_evaluation_accuracy": "final_validation_accuracy",
    "judged_clients": "evaluated_clients",
}
"""Keys of summary.json that were renamed after format version 1."""

CLIENT = {"evaluation": "validation"}
"""Keys of clients.json that were renamed after format version 1."""

SERVER_STATE = {"scores.evaluation_accuracy": "scores.validation_accuracy"}
"""Tensors of the server's checkpoint that were renamed after format version 1."""


def with_current_names(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of `content` in which each old key is replaced by its current name.

    If `content` has both names of a key, the old name stays, so that the reader reports it as
    unknown instead of overwriting a value.
    """
    return {
        key if names.get(key, key) in content else names.get(key, key): value
        for key, value in content.items()
    }
