"""Keys that were renamed, so that files of earlier versions can be read."""

from collections.abc import Mapping
from typing import Any

SETTINGS = {"model.zoo": "model.extractors", "run.largest_norm": "run.max_norm"}
"""Keys of a configuration, until version 0.2."""

ROUND = {
    "evaluation_accuracy": "validation_accuracy",
    "evaluation_accuracy_per_client": "validation_accuracy_per_client",
    "measured": "method_metrics",
    "set_aside": "excluded",
}
"""Keys of rounds.jsonl in format version 1."""

SUMMARY = {
    "final_evaluation_accuracy": "final_validation_accuracy",
    "judged_clients": "evaluated_clients",
}
"""Keys of summary.json in format version 1."""

CLIENT = {"evaluation": "validation"}
"""Keys of clients.json in format version 1."""

SERVER_STATE = {"scores.evaluation_accuracy": "scores.validation_accuracy"}
"""Tensors in the server's checkpoint in format version 1."""


def with_current_names(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of `content` in which each old key has its current name.

    A key that has its current name already is not overwritten: the old one then stays, and is
    reported as unknown.
    """
    return {
        key if names.get(key, key) in content else names.get(key, key): value
        for key, value in content.items()
    }
