"""A table of the clients of a run, made from the text in its folder without running any code."""

import math

from fedgh.core.types import Task
from fedgh.formats import few, percent
from fedgh.models import parameters_of
from fedgh.report.terminal import MAX_CLIENTS
from fedgh.runs.read import NamedRun
from fedgh.tables import Cell, Column, Sheet

COLUMNS = (
    Column("client"),
    Column("network"),
    Column("parameters", digits=0),
    Column("classes"),
    Column("samples", digits=0),
    Column("last round", digits=0),
    Column("accuracy"),
    Column("on all classes"),
)


def client_sheet(run: NamedRun) -> Sheet:
    """Return a table with a row for each client; a value missing in the folder is a dash."""
    shown = run.clients[:MAX_CLIENTS]
    sizes = {name: _parameters(run, name) for name in {client.extractor for client in shown}}
    last, scores, global_scores = _last_rounds(run), run.accuracies, run.global_accuracies
    rows: list[list[Cell]] = [
        [
            client.called,
            client.extractor,
            sizes[client.extractor],
            few(list(client.classes)) or None,
            sum(client.classes.values()) or None,
            last.get(client.client),
            percent(scores.get(client.client)),
            percent(global_scores.get(client.client)),
        ]
        for client in shown
    ]
    more = len(run.clients) - len(shown)
    note = f"{more} more clients are in clients.json" if more else ""
    return Sheet("clients", f"{run.label}: {run.settings.method.name}", COLUMNS, rows, note)


def _last_rounds(run: NamedRun) -> dict[int, int]:
    """Return the last round in which each client took part and did not fail."""
    last: dict[int, int] = {}
    for round in run.rounds:
        failed = {problem.client for problem in round.failed}
        last |= dict.fromkeys(set(round.participants) - failed, round.round)
    return last


def _parameters(run: NamedRun, name: str) -> int | None:
    """Return a network's number of parameters; None if it is not one of fedgh's networks.

    Other networks would have to be imported, and the folder is untrusted.
    """
    shape = run.identity.shape
    if not shape or math.prod(shape) <= 0:
        return None
    task = Task(len(run.identity.classes), run.settings.model.rep_dim, 1, 1, 0, tuple(shape))
    return parameters_of(name, task)
