"""Commands for a federation on this machine: up, status, stop."""

import os
import signal
import time
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedgh import config
from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.errors import RunError
from fedgh.flower.deployment import deployed, follow, locked
from fedgh.flower.folder import FederationFolder
from fedgh.flower.processes import GRACE, clean_end, end_orphans, running_processes
from fedgh.flower.server import read_participants
from fedgh.flower.session import Session
from fedgh.formats import percent
from fedgh.report.terminal import say
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import name_runs
from fedgh.training.experiment import prepare
from fedgh.training.progress import Live


def up(path: Path, out: Path, console: Console) -> RunFolder:
    """Start a federation, train or resume the run in `out`, and end the federation.

    Return the run folder; raise RunError if the run fails or is finished already.
    """
    folder = FederationFolder.open(path)
    experiment = prepare(config.load(folder.experiment))
    if (out / "summary.json").exists():
        raise RunError(f"{out} is a finished run; choose another --out")
    clients = experiment.task.num_clients
    read_participants(folder.keys, clients)  # report a missing key before any process is started
    with (
        clean_end() as check,
        deployed(folder, clients, partial(say, console)) as deployment,
        Live(console) as live,
    ):
        live.started(experiment, RunFolder(out), RunFolder(out).records())
        run = deployment.train(out)

        def finished_round(record: Round) -> None:
            for failure in record.failed:
                live.replied(Reply(failure.client, record.round, error=failure.reason))
            live.finished_round(record)

        return follow(deployment, run, out, finished_round, check)


def status(path: Path, out: Path, console: Console) -> None:
    """Print the running processes, and the last round and accuracy of the run."""
    folder = FederationFolder.open(path)
    running: dict[str, int] = {}
    if folder.processes.exists():
        _, running = running_processes(folder.processes)
    table = Table("process", "PID", "log")
    for name, pid in running.items():
        table.add_row(name, str(pid), str(folder.logs / f"{name}.log"))
    if running:
        console.print(table)
    else:
        console.print("nothing is running")
    records = RunFolder(out).records()
    if (out / "config.toml").exists():
        (run,) = name_runs([out])
        rounds = run.settings.federation.rounds
        last = next((r.accuracy for r in reversed(records) if r.accuracy is not None), None)
        console.print(f"{out}: round {len(records)} of {rounds}, accuracy {percent(last)}")
    session = Session.read(out)
    if session is not None and session.error is not None:
        say(console, f"the last start ended with an error: {session.error}")


def stop(path: Path) -> bool:
    """End the processes of a federation, even if the process that started them was killed.

    Return false if no process was running; raise RunError if a process does not end.
    """
    folder = FederationFolder.open(path)
    if not folder.processes.exists():
        return False
    starter, _ = running_processes(folder.processes)
    if _is_running(folder):
        os.kill(starter, signal.SIGTERM)
        deadline = time.monotonic() + 3 * GRACE
        while _is_running(folder):
            if time.monotonic() > deadline:
                raise RunError(f"process {starter} does not end; end it with: kill -9 {starter}")
            time.sleep(0.2)
    else:
        end_orphans(folder.processes)
    return True


def _is_running(folder: FederationFolder) -> bool:
    """Return true if another process has locked the folder: the one that started the federation."""
    try:
        with locked(folder):
            return False
    except RunError:
        return True
