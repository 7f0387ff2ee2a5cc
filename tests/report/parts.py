"""Helpers for tests of reports: copies of runs at an earlier round, and data of charts."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgh.report.charts import AnyChart
from fedgh.report.groups import Groups
from fedgh.runs.read import NamedRun

HOSTILE = "</script><script>alert(1)</script>"


def cut(run: Path, to: Path, rounds: int) -> Path:
    """Copy a finished run as it was after `rounds` rounds, without its checkpoint."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("checkpoint"))
    (to / "summary.json").unlink()
    (to / "confusion.json").unlink(missing_ok=True)
    lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (to / "rounds.jsonl").write_bytes(b"".join(lines[:rounds]))
    for file in (to / "means").glob("*"):
        if int(file.stem) > rounds:
            file.unlink()
    return to


def rewrite(path: Path, **changes: Any) -> None:
    """Change the last record of a run, and delete its checkpoint, which has its digest."""
    shutil.rmtree(path.parent / "checkpoint", ignore_errors=True)
    lines = path.read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | changes)
    path.write_text("\n".join(lines) + "\n")


def alone(runs: Sequence[NamedRun]) -> Groups:
    """Return the runs as groups of one run each."""
    return {run.label: [run] for run in runs}


def rows(chart: AnyChart) -> list[dict[str, Any]]:
    """Return the data of all layers of a chart."""
    datasets = chart.to_dict()["datasets"].values()
    return [row for values in datasets for row in values]
