"""The confusion matrix of a finished run, measured once from its checkpoint.

Data are loaded and networks made as its configuration names them, as far as that is trusted.
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
"""Clients whose models are evaluated; of more clients, a random sample is taken."""


@dataclass(frozen=True)
class Confusion:
    """The predictions of the models after `round` on their clients' own test splits."""

    round: int
    took_part: int  # clients with a trained model
    clients: list[int]  # clients that were evaluated
    right: list[int]  # of each of them: test samples that are classified correctly
    tested: list[int]  # of each of them: all test samples
    counts: list[list[int]]  # [true class][predicted class], summed over them


def read(folder: RunFolder) -> Confusion | None:
    """Return the stored result; None if there is none. Raise RunError if it is damaged."""
    path = _path(folder)
    if not path.exists():
        return None
    classes = len(folder.identity().classes)
    try:
        stored = TypeAdapter(Confusion).validate_json(read_bytes(path, MAX_JSON))
        if [len(row) for row in stored.counts] != [classes] * classes:
            raise ValueError("it has other classes than the run")
    except (OSError, ValueError):
        raise RunError(f"{path} cannot be read; delete it, then it is measured again") from None
    return stored


def measure(folder: RunFolder, checkpoint: Checkpoint | None = None, *, trust: Trust) -> Confusion:
    """Measure a finished run and store the result in its folder.

    `checkpoint` is that of the run, if it is loaded already. Raise FedghError if the run cannot be
    measured.
    """
    stored = read(folder)
    if stored is not None:
        return stored
    if not folder.finished:
        raise RunError("the run has not finished")
    if checkpoint is None:
        checkpoint = load(folder, trust=trust)
    with one_thread():  # as in the run, so that accuracies are equal
        measured = _measure(checkpoint)
    write_atomic(_path(folder), json.dumps(asdict(measured)).encode() + b"\n")
    return measured


def _measure(checkpoint: Checkpoint) -> Confusion:
    clients = _some(checkpoint.took_part, checkpoint.experiment.task.seed)
    classes = checkpoint.experiment.task.num_classes
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    right: list[int] = []
    tested: list[int] = []
    for number in clients:
        client = checkpoint.client(number)
        own = evaluate(client, checkpoint.blueprint.method.logits, client.data.test).counts
        right.append(int(own.trace()))
        tested.append(int(own.sum()))
        counts += own
    return Confusion(
        checkpoint.round, len(checkpoint.took_part), clients, right, tested, counts.tolist()
    )


def _some(clients: list[int], seed: int) -> list[int]:
    """Return all clients, or a random sample: a regular one could miss an architecture."""
    order = torch.randperm(len(clients), generator=stream(seed, "confusion"))
    return sorted(clients[position] for position in order[:MAX_CLIENTS].tolist())


def _path(folder: RunFolder) -> Path:
    return folder.path / "confusion.json"
