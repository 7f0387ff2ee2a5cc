"""Everything that reads a run folder."""

from pathlib import Path

from fedgh.audit import result as audit
from fedgh.errors import FedghError
from fedgh.flower.session import Session
from fedgh.report.clients import client_sheet
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun
from fedgh.runs.summary import check_finished
from fedgh.trained import confusion
from tests.fuzz.refusal import Refused, attempt

ROUNDS = 3
"""Of the runs that are looked at."""


def look_at(folder: Path) -> None:
    """Everything that a report, a comparison and the status of a federation read."""
    run = NamedRun("run", RunFolder(folder))
    asked = [
        lambda: (run.rounds, run.evaluated, run.result),
        lambda: (run.clients, client_sheet(run)),
        lambda: run.identity,
        lambda: (run.config, run.settings),
        lambda: confusion.read(run.folder),
        lambda: audit.read(run.folder),
        lambda: check_finished(run.folder, ROUNDS),
        lambda: Session.read(folder),
    ]
    for ask in asked:
        found = attempt(FedghError, ask)
        assert not isinstance(found, Refused) or "\n" not in found.why
