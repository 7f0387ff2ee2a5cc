"""The result of a run: the contents of summary.json.

The result is the accuracy after the last round. The best accuracy over all rounds is included for
comparison with papers that report it; it is selected on test data and therefore too high.
"""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedgh.config import Config
from fedgh.core.metrics import NEEDED
from fedgh.core.records import ClientInfo, PrivacySpending, Progress, Round, Summary
from fedgh.core.types import Task
from fedgh.errors import RunError
from fedgh.methods.paper_bytes import paper_bytes
from fedgh.runs.folder import RunFolder, versions


def summarise(
    config: Config,
    data: str,
    task: Task,
    rounds: Sequence[Round],
    clients: Sequence[ClientInfo],
    privacy: PrivacySpending | None,
    public_bytes: int | None = None,
    linear_accuracy: float | None = None,
) -> Summary:
    """Return the result of a finished run, without `privacy` or public data if it had none."""
    optional = {
        "privacy": privacy,
        "public_bytes_per_client": public_bytes,
        "linear_accuracy": linear_accuracy,
    }
    sizes = [
        paper_bytes(config.method.name, task, len(client.classes))
        for client in clients
        if client.classes  # empty if the client keeps its classes secret
    ]
    paper = [size for size in sizes if size is not None]
    return Summary(
        **dict(progress(rounds, config.federation.target)),
        method=config.method.name,
        data=data,
        seed=task.seed,
        clients=task.num_clients,
        paper_bytes_per_client_round=sum(paper) / len(paper) if paper else None,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"python": platform.python_version(), **versions()},
        machine={
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
        **{name: value for name, value in optional.items() if value is not None},
    )


def progress(rounds: Sequence[Round], target: float | None) -> Progress:
    """Return the totals and latest scores of the rounds so far; there may be none."""
    scores = {record.round: record.accuracy for record in rounds if record.accuracy is not None}
    last = rounds[max(scores) - 1] if scores else None
    reached = [number for number, score in scores.items() if target is not None and score >= target]
    client_rounds = sum(len(record.participants) for record in rounds)
    sent = rounds[-1].bytes_total if rounds else 0
    return Progress(
        rounds=len(rounds),
        evaluated_clients=sum(score is not None for score in last.accuracies) if last else 0,
        final=last.scores if last else dict.fromkeys(NEEDED),
        best_accuracy=max(scores.values(), default=None),
        target=target,
        rounds_to_target=reached[0] if reached else None,
        bytes_to_target=rounds[reached[0] - 1].bytes_total if reached else None,
        bytes_total=sent,
        wire_bytes_total=sum(record.wire_bytes for record in rounds),
        bytes_per_client_round=sent / client_rounds if client_rounds else None,
        seconds=sum(record.seconds["total"] for record in rounds),
    )


def check_finished(run: RunFolder, rounds: int) -> None:
    """Raise RunError if the summary of a finished run does not agree with `rounds` records."""
    try:
        records, summary = run.records(), run.summary()
    except RunError as error:
        raise RunError(f"{error} (or delete the folder, and it is run again)") from None
    if not len(records) == summary.rounds == rounds:
        raise RunError(
            f"{run.path} has a summary, but {len(records)} of {rounds} rounds; delete it, and it "
            "is run again"
        )
    if any(getattr(summary, name) != known for name, known in progress(records, summary.target)):
        raise RunError(
            f"{run.path}: summary.json does not agree with rounds.jsonl; `fedgh resume` writes it "
            "again"
        )


def processor() -> str:
    """Return the model name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
