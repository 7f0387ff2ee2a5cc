"""What is in a folder when all is done, without what may differ.

That is clocks, numbers of starts, and the identity that a run draws when it begins.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from tests.support.tiny import tensors

DIFFERENT = {"run", "seconds", "finished", "wire_bytes", "wire_bytes_total"}
OWN = re.compile(r"experiments/[0-9a-f]{32}")  # the name under which participants keep a run
STATE = re.compile(r"(client-\d+)\.round-\d+\.safetensors")


def end(workdir: Path) -> dict[str, Any]:
    """Every file; of a participant's states the last one."""
    found: dict[str, Any] = {}
    for path in sorted(workdir.rglob("*")):
        name = OWN.sub("experiments/run", str(path.relative_to(workdir)))
        if path.is_dir() or path.name in ("flower.json", "turn.json", "name.txt"):
            continue
        if name.startswith("states/"):
            name = STATE.sub(r"\1", name)
        found[name] = _content(path)
    answers = workdir.with_suffix(".answers")
    return {**found, "answers": answers.read_text() if answers.exists() else None}


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return tensors(path)
    if path.suffix == ".jsonl":
        return [_alike(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return _alike(json.loads(path.read_text()))
    if path.suffix == ".toml":
        return {k: v for k, v in tomllib.loads(path.read_text()).items() if k != "run"}
    return path.read_bytes()


def _alike(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if k not in DIFFERENT}
