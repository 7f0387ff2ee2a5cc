"""What lies do to those who do not lie, and what the server's defences find."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgh.core.records import Round


@dataclass(frozen=True)
class Harm:
    """One run, seen by the clients that are honest in all runs it is compared with."""

    accuracy: float  # their mean after the last round
    lies_left_out: float | None  # the share of poisoned class means that the server left out
    truths_left_out: float  # the share of the honest ones
    rejected: int  # uploads


def measure(
    records: Sequence[Round], named: Sequence[int], liars: int, always_honest: Sequence[int]
) -> Harm:
    """From the records of a run in which the first `liars` clients lie.

    `named` says how many classes each client speaks about: as many means it sends in a round.
    """
    last = records[-1].accuracies
    scores = [score for client in always_honest if (score := last[client]) is not None]
    return Harm(
        accuracy=sum(scores) / len(scores),
        lies_left_out=_left_out(records, named, range(liars)) if liars else None,
        truths_left_out=_left_out(records, named, range(liars, len(named))),
        rejected=sum(len(record.rejected) for record in records),
    )


def _left_out(records: Sequence[Round], named: Sequence[int], clients: Sequence[int]) -> float:
    """The share of these clients' class means that were received and left out."""
    received = left_out = 0
    for record in records:
        received += sum(named[client] for client in record.answered if client in clients)
        left_out += sum(len(item.classes) for item in record.dropped if item.client in clients)
    return left_out / received if received else 0.0
