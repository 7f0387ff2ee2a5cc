"""The content of a folder at the end of a scenario, without values that may differ.

Those are times, numbers of starts, and the random identity of a run.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from tests.support.states import client_states, tensors

UNLIKE = ("flower.json", "current.json", "turn.json", "name.txt", "request.json")
MAY_DIFFER = {"run", "seconds", "finished", "wire_bytes", "wire_bytes_total"}
OWN = re.compile(r"experiments/[0-9a-f]{32}")  # folder of a run in a client's states
ROUND = re.compile(r"\.round-\d+")


def end(workdir: Path) -> dict[str, Any]:
    """Return the content of every file, and the last state of every client."""
    contents: dict[str, Any] = {}
    for path in sorted(workdir.rglob("*")):
        name = OWN.sub("experiments/run", str(path.relative_to(workdir)))
        if path.is_dir():
            contents |= {f"{name}/{client}": state for client, state in _states(path).items()}
        elif path.suffix != ".states" and path.name not in UNLIKE:
            contents[name] = _content(path)
    answers = workdir.with_suffix(".answers")
    return {**contents, "answers": answers.read_text() if answers.exists() else None}


def _states(folder: Path) -> dict[str, bytes]:
    """Return the newest states in a folder; names have their round only in a run folder."""
    states = client_states(folder)
    if folder.name == "checkpoint":
        return states
    return {ROUND.sub("", name): state for name, state in states.items()}


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
