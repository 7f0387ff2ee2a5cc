"""Call all functions that read a run folder."""

from pathlib import Path

from fedgh.audit import result as audit
from fedgh.errors import FedghError
from fedgh.flower.current import read_current
from fedgh.flower.session import Session
from fedgh.report.clients import client_sheet
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun
from fedgh.runs.summary import check_finished
from fedgh.trained import confusion
from tests.fuzz.refusal import Refused, attempt

ROUNDS = 3
"""Rounds of the runs in these tests."""


def read_everything(folder: Path) -> None:
    """Read all that a report, a comparison and the status of a federation read."""
    run = NamedRun("run", RunFolder(folder))
    reads = [
        lambda: (run.rounds, run.evaluated, run.result),
        lambda: (run.clients, client_sheet(run)),
        lambda: run.identity,
        lambda: (run.config, run.settings),
        lambda: confusion.read(run.folder),
        lambda: audit.read(run.folder),
        lambda: check_finished(run.folder, ROUNDS),
        lambda: Session.read(folder),
        lambda: read_current(folder, run.identity.run),
    ]
    for read in reads:
        outcome = attempt(FedghError, read)
        assert not isinstance(outcome, Refused) or "\n" not in outcome.why
