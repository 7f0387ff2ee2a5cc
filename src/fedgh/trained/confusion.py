"""Which classes the models of a finished run take for which: measured once, from its checkpoint.

The data are loaded and the networks made that the configuration names, as far as it is trusted.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter

from fedgh.core.local import evaluate
from fedgh.core.rng import stream
from fedgh.core.threads import one_thread
from fedgh.errors import RunError
from fedgh.files import read_bytes, write_atomic
from fedgh.runs.folder import MAX_JSON, RunFolder
from fedgh.training.restore import Checkpoint, load
from fedgh.trust import Trust

MAX_CLIENTS = 200
"""Models that are looked at, at most: of very many clients a random sample says as much."""


@dataclass(frozen=True)
class Confusion:
    """What the models after `round` make of their clients' own test data."""

    round: int
    took_part: int  # clients with a trained model
    clients: list[int]  # those that were looked at
    right: list[int]  # of each of these, how many of its test samples its model gets right
    tested: list[int]  # and how many it has
    counts: list[list[int]]  # [true class][predicted class], of all of them together


def read(folder: RunFolder) -> Confusion | None:
    """What was measured before; None when nothing was."""
    path = _path(folder)
    if not path.exists():
        return None
    classes = len(folder.identity().classes)
    try:
        found = TypeAdapter(Confusion).validate_json(read_bytes(path, MAX_JSON))
        if [len(row) for row in found.counts] != [classes] * classes:
            raise ValueError("it has other classes than the run")
    except (OSError, ValueError):
        raise RunError(f"{path} cannot be read; delete it, and it is measured again") from None
    return found


def measure(folder: RunFolder, left: Checkpoint | None = None, *, trust: Trust) -> Confusion:
    """Measure a finished run and keep the result in its folder; FedghError says why not.

    `left` is what it has left, if that is known already.
    """
    known = read(folder)
    if known is not None:
        return known
    if not folder.finished:
        raise RunError("the run has not finished")
    if left is None:
        left = load(folder, trust=trust)
    with one_thread():  # as in the run, so that the numbers are the same
        measured = _measure(left)
    write_atomic(_path(folder), json.dumps(asdict(measured)).encode() + b"\n")
    return measured


def _measure(left: Checkpoint) -> Confusion:
    clients = _some(left.took_part, left.experiment.task.seed)
    classes = left.experiment.task.num_classes
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    right: list[int] = []
    tested: list[int] = []
    for number in clients:
        client = left.client(number)
        own = evaluate(client, left.blueprint.method.logits, client.data.test).counts
        right.append(int(own.trace()))
        tested.append(int(own.sum()))
        counts += own
    return Confusion(left.round, len(left.took_part), clients, right, tested, counts.tolist())


def _some(clients: list[int], seed: int) -> list[int]:
    """All of them, or a random sample: a regular one could miss an architecture."""
    order = torch.randperm(len(clients), generator=stream(seed, "confusion"))
    return sorted(clients[place] for place in order[:MAX_CLIENTS].tolist())


def _path(folder: RunFolder) -> Path:
    return folder.path / "confusion.json"
