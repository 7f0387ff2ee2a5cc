"""Commands of the operator: up, status, metrics, stop."""

import json
import os
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from fedgh import config
from fedgh.choices import TextFormat
from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.errors import RunError
from fedgh.flower.current import read_current
from fedgh.flower.deployment import Say, deployed, follow, locked
from fedgh.flower.display import UpBars, UpLog, print_status
from fedgh.flower.exporter import MetricsServer, serving
from fedgh.flower.folder import FederationFolder
from fedgh.flower.processes import GRACE, clean_end, end_orphans, running_processes
from fedgh.flower.server import read_participants
from fedgh.flower.status import federation_status, running_superlink
from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import prepare


def up(
    path: Path, out: Path, progress: UpBars | UpLog, say: Say, metrics: int | None = None
) -> RunFolder:
    """Start a federation, train or resume the run in `out`, and end the federation.

    `metrics` is the port of the metrics. Return the run folder; raise RunError if the run fails or
    is finished already.
    """
    folder = FederationFolder.open(path)
    experiment = prepare(config.load(folder.experiment))
    if (out / "summary.json").exists():
        raise RunError(f"{out} is a finished run; choose another --out")
    address = running_superlink(folder)
    if address is not None:  # both would use one database, and the keys of the same clients
        raise RunError(
            f"the SuperLink of {path} runs already, at {address}; train with "
            f"sh {path / 'server' / 'train.sh'}, or end it first"
        )
    clients = experiment.task.num_clients
    read_participants(folder.keys, clients)  # report a missing key before any process is started
    with ExitStack() as stack:
        check = stack.enter_context(clean_end())
        if metrics is not None:
            server = stack.enter_context(serving(folder, out, metrics))
            say(f"metrics at {server.url}")
        deployment = stack.enter_context(deployed(folder, clients, say))
        stack.enter_context(progress)
        progress.started(experiment, RunFolder(out), RunFolder(out).records())
        run = deployment.train(out)
        run_folder = RunFolder(out)

        def look() -> None:
            check()
            with suppress(RunError):  # the server has not created the run yet
                current = read_current(out, run_folder.run_id)
                if current is not None and not current.ended:
                    progress.watch(current)

        def finished_round(record: Round) -> None:
            for failure in record.failed:
                progress.replied(Reply(failure.client, record.round, error=failure.reason))
            progress.finished_round(record)

        try:
            return follow(deployment, run, out, finished_round, look)
        except RunError as error:
            raise RunError(
                f"{error}\nthe logs are in {folder.logs}; to continue: fedgh flower up {path}"
            ) from None


def status(path: Path, out: Path, format_: TextFormat, console: Console) -> None:
    """Print the status of a federation, as text or as one JSON object."""
    folder = FederationFolder.open(path)
    found = federation_status(folder, out, ask_superlink=True)
    if format_ == "json":
        print(json.dumps(asdict(found), indent=2))
    else:
        print_status(found, console, folder.logs)


def metrics(path: Path, out: Path, port: int, say: Say) -> None:
    """Serve the metrics of a federation until Ctrl-C."""
    with MetricsServer(FederationFolder.open(path), out, port) as server:
        say(f"metrics at {server.url} until Ctrl-C")
        server.serve_forever()


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
