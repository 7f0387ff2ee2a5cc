"""The content of a folder at the end of a scenario, without values that may differ.

Those are times, numbers of starts, and the random identity of a run.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from tests.support.tiny import tensors

MAY_DIFFER = {"run", "seconds", "finished", "wire_bytes", "wire_bytes_total"}
OWN = re.compile(r"experiments/[0-9a-f]{32}")  # folder of a run in a client's states
STATE = re.compile(r"(client-\d+)\.round-\d+\.safetensors")


def end(workdir: Path) -> dict[str, Any]:
    """Return the content of every file; of a client's states only the last one."""
    contents: dict[str, Any] = {}
    for path in sorted(workdir.rglob("*")):
        name = OWN.sub("experiments/run", str(path.relative_to(workdir)))
        if path.is_dir() or path.name in ("flower.json", "turn.json", "name.txt"):
            continue
        if name.startswith("states/"):
            name = STATE.sub(r"\1", name)
        contents[name] = _content(path)
    answers = workdir.with_suffix(".answers")
    return {**contents, "answers": answers.read_text() if answers.exists() else None}


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return tensors(path)
    if path.suffix == ".jsonl":
        return [_comparable(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return _comparable(json.loads(path.read_text()))
    if path.suffix == ".toml":
        return {k: v for k, v in tomllib.loads(path.read_text()).items() if k != "run"}
    return path.read_bytes()


def _comparable(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if k not in MAY_DIFFER}
