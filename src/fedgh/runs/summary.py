"""What came out of a run, in one small table.

The result is the accuracy after the last round. The best over all rounds is there for
comparison with papers that report it; it is chosen on test data and therefore flattering.
"""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgh.config import Config
from fedgh.core.types import Task
from fedgh.errors import RunError
from fedgh.runs.folder import Record, RunFolder, versions
from fedgh.runs.records import RECORDED, Round, Summary, checked


def summarise(
    config: Config, data: str, task: Task, records: list[Record], clients: list[Record]
) -> dict[str, Any]:
    """The numbers of summary.json."""
    reckoned = [
        config.method.paper_bytes(task, len(client["classes"]))
        for client in clients
        if client["classes"]  # else a participant's secret
    ]
    paper = [size for size in reckoned if size is not None]
    return {
        "method": config.method.name,
        "data": data,
        "seed": task.seed,
        "clients": task.num_clients,
        **so_far(records, config.federation.target),
        "paper_bytes_per_client_round": sum(paper) / len(paper) if paper else None,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **versions(),
        },
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
    }


def so_far(records: list[Record], target: float | None) -> dict[str, Any]:
    """The part that the rounds say by themselves, also before the last one and before any."""
    evaluated = [record for record in records if record["accuracy"] is not None]
    reached = next((r for r in evaluated if target is not None and r["accuracy"] >= target), None)
    client_rounds = sum(len(record["participants"]) for record in records)
    last = evaluated[-1] if evaluated else {"accuracy_per_client": []}
    sent = records[-1]["bytes_total"] if records else 0
    return {
        "rounds": len(records),
        "judged_clients": sum(score is not None for score in last["accuracy_per_client"]),
        "final_accuracy": last.get("accuracy"),
        "final_evaluation_accuracy": last.get("evaluation_accuracy"),
        **{f"final_{name}": last[name] for name in RECORDED if name in last},
        "best_accuracy": max((record["accuracy"] for record in evaluated), default=None),
        "target": target,
        "rounds_to_target": reached and reached["round"],
        "bytes_to_target": reached and reached["bytes_total"],
        "bytes_total": sent,
        "wire_bytes_total": sum(record.get("wire_bytes", 0) for record in records),
        "bytes_per_client_round": sent / client_rounds if client_rounds else None,
        "seconds": sum(record["seconds"]["total"] for record in records),
    }


def check_finished(run: RunFolder, rounds: int) -> None:
    """Refuse a run that says it is finished but is not what `rounds` rounds would have left."""
    try:
        records, said = run.records(), run.summary()
        summary = checked(Summary, said, run.path / "summary.json")
        checked(list[Round], records, run.path / "rounds.jsonl")
    except RunError as error:
        raise RunError(f"{error} (or delete it, and it is run again)") from None
    if not len(records) == summary.rounds == rounds:
        raise RunError(
            f"{run.path} has {len(records)} of {rounds} rounds, but a summary; delete it, and it "
            "is run again"
        )
    if not so_far(records, summary.target).items() <= (said or {}).items():
        raise RunError(
            f"{run.path}: summary.json is not what the rounds say; `fedgh resume` writes it again"
        )


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
