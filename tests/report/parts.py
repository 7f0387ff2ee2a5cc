"""Copies of runs at an earlier moment."""

import json
import shutil
from pathlib import Path
from typing import Any

from fedgh.report.charts import AnyChart

HOSTILE = "</script><script>alert(1)</script>"


def cut(run: Path, to: Path, rounds: int) -> Path:
    """A copy of a finished run as it was after so many rounds, without its checkpoint."""
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
    """Change the last record of a run; its checkpoint, which knows better, goes."""
    shutil.rmtree(path.parent / "checkpoint", ignore_errors=True)
    lines = path.read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | changes)
    path.write_text("\n".join(lines) + "\n")


def rows(chart: AnyChart) -> list[dict[str, Any]]:
    """The data of a chart, of all its layers together."""
    found = chart.to_dict()["datasets"].values()
    return [row for values in found for row in values]
