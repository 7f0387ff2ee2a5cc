"""The effect of poisoned uploads on honest clients, and the class means that defences drop."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgh.core.records import Round


@dataclass(frozen=True)
class PoisoningEffect:
    """Accuracy of clients that are honest in all compared runs, and shares of dropped means."""

    accuracy: float  # mean over these clients after the last round
    poisoned_dropped: float | None  # share of the poisoned class means that the server dropped
    honest_dropped: float  # share of the honest class means that the server dropped
    rejected: int  # number of rejected uploads


def measure(
    records: Sequence[Round], sent: Sequence[int], malicious: int, always_honest: Sequence[int]
) -> PoisoningEffect:
    """Return the effect of poisoning in a run whose first `malicious` clients are malicious.

    `sent` has the number of class means that each client sends in a round.
    """
    last = records[-1].accuracies
    scores = [score for client in always_honest if (score := last[client]) is not None]
    return PoisoningEffect(
        accuracy=sum(scores) / len(scores),
        poisoned_dropped=_dropped(records, sent, range(malicious)) if malicious else None,
        honest_dropped=_dropped(records, sent, range(malicious, len(sent))),
        rejected=sum(len(record.rejected) for record in records),
    )


def _dropped(records: Sequence[Round], sent: Sequence[int], clients: Sequence[int]) -> float:
    """Return the share of the class means received from these clients that the server dropped."""
    received = dropped = 0
    for record in records:
        received += sum(sent[client] for client in record.answered if client in clients)
        dropped += sum(len(item.classes) for item in record.dropped if item.client in clients)
    return dropped / received if received else 0.0
