"""Records of runs that were never trained."""

from typing import Any

from fedgh.core.records import Round, Summary


def a_round(number: int, accuracy: float | None = None, **keys: Any) -> Round:
    """Return the record of a round with these values, and defaults for the others."""
    each = keys.get("accuracy_per_client")
    if accuracy is not None and each is None:
        keys["accuracy_per_client"] = [accuracy]
    usual: dict[str, Any] = {
        "round": number,
        "participants": [],
        "accuracy": accuracy,
        "validation_accuracy": None,
        "accuracy_per_client": None,
        "train_loss": None,
        "method_metrics": {},
        "discarded": None,
        **dict.fromkeys(("bytes_up", "bytes_down", "bytes_total", "wire_bytes"), 0),
        **dict.fromkeys(("rejected", "failed", "dropped", "excluded", "forgotten"), ()),
        "seconds": {"total": 0.0},
    }
    return Round.model_validate(usual | keys)


def a_summary(**keys: Any) -> Summary:
    """Return a summary with these values, and defaults for the others."""
    unknown = ["best_accuracy", "target", "rounds_to_target", "bytes_to_target"]
    unknown += ["bytes_per_client_round", "paper_bytes_per_client_round"]
    usual: dict[str, Any] = {
        **dict.fromkeys(unknown),
        **dict.fromkeys(("rounds", "evaluated_clients", "bytes_total", "wire_bytes_total"), 0),
        **dict.fromkeys(("seed", "clients"), 0),
        **dict.fromkeys(("method", "data", "finished"), ""),
        "seconds": 0.0,
        "versions": {},
        "machine": {},
    }
    return Summary.model_validate(usual | keys)
