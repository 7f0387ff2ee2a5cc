"""A whole federation on this machine, with TLS, keys and processes as between organisations.

It is started by the scripts in its folder, which are those that the operator and the clients of a
real federation start by hand, but on free ports. All its processes are ended in every case.
"""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedgh import files
from fedgh.core.records import Round
from fedgh.errors import RunError
from fedgh.flower.folder import FederationFolder
from fedgh.flower.node import explanation
from fedgh.flower.processes import Processes, end_orphans
from fedgh.flower.session import Session
from fedgh.runs.folder import RunFolder

PATIENCE = 90.0
"""Seconds to wait for an answer of the SuperLink or of a Flower command."""

STATUS_INTERVAL = 15.0
"""Seconds between queries of the run's status; the run folder, read more often, tells more."""

MAX_FAILED_QUERIES = 5
"""Maximum number of status queries that may fail."""

MIN_RESTART_DELAY, MAX_RESTART_DELAY = 5.0, 15.0
"""Seconds before a client's node is started again; Flower refuses the same key for a while."""

Say = Callable[[str], None]


class Deployment:
    """The processes of a federation on this machine."""

    def __init__(self, folder: FederationFolder, clients: int, say: Say) -> None:
        self.folder = folder
        self.processes = Processes(folder.processes, folder.logs)
        self._clients = clients
        self._say = say
        self._port, *self._node_ports = free_ports(1 + clients)
        self._next_start: dict[int, float] = {}  # client -> time to start its node again
        self._delay = dict.fromkeys(range(clients), MIN_RESTART_DELAY)

    def start(self) -> None:
        """Start the SuperLink and all nodes; do not wait until the nodes are connected."""
        self._say("starting the SuperLink")
        self._start("superlink", self.folder.server / "superlink.sh")
        self._wait_until_healthy()
        self._start("superexec", self.folder.server / "superexec.sh")
        self._say(f"registering the keys of {self._clients} clients")
        for client in range(self._clients):
            self._register(client)
        for client in range(self._clients):
            self.start_node(client)

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client."""
        script = self.folder.participant(client) / "node.sh"
        self._start(f"node-{client}", script, FEDGH_NODE_PORT=self._node_ports[client])

    def train(self, out: Path) -> int:
        """Start a run in Flower, and return Flower's number of the run."""
        script = self.folder.server / "train.sh"
        return int(self._ask([str(script), str(out.absolute())])["run-id"])

    def restart_nodes(self) -> None:
        """Restart nodes that have ended; raise RunError if the SuperLink or SuperExec has ended."""
        for name in ("superlink", "superexec"):
            code = self.processes.exit_code(name)
            if code is not None:
                raise RunError(
                    f"the {name} has ended (exit code {code}):\n{self.processes.log_end(name)}"
                )
        now = time.monotonic()
        for client in range(self._clients):
            code = self.processes.exit_code(f"node-{client}")
            if code is None:
                continue
            if client not in self._next_start:
                delay = self._delay[client]
                self._delay[client] = min(2 * delay, MAX_RESTART_DELAY)
                self._next_start[client] = now + delay
                reason = explanation(self.processes.log_end(f"node-{client}", lines=40))
                self._say(
                    f"the node of client {client} has ended (exit code {code}"
                    f"{': ' + reason if reason else ''}); next start in {delay:.0f} s"
                )
            elif now >= self._next_start[client]:
                del self._next_start[client]
                self.start_node(client)

    def status(self, run: int) -> tuple[str, str]:
        """Return Flower's status of a run (pending, running or finished), and how it finished."""
        answer = self.flwr("list", "federation", "--run-id", str(run))
        status, _, outcome = str(answer["runs"][0]["status"]).partition(":")
        return status, outcome

    def run_log(self, run: int) -> str:
        """Return the log of the server app of a run."""
        script = str(self.folder.server / "flwr.sh")
        return self._call([script, "log", str(run), "federation", "--show"]).stdout

    def _wait_until_healthy(self) -> None:
        trust = ssl.create_default_context(cafile=self.folder.server / "ca.crt")
        end = time.monotonic() + PATIENCE
        while self.processes.exit_code("superlink") is None and time.monotonic() < end:
            with suppress(OSError):
                address = f"https://127.0.0.1:{self._port}/health"
                with urllib.request.urlopen(address, context=trust, timeout=5) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.2)
        raise RunError(f"the SuperLink does not start:\n{self.processes.log_end('superlink')}")

    def _register(self, client: int) -> None:
        key = f"participants/{client}.pub"
        self.flwr("supernode", "register", key, "federation", accept="already in use")

    def flwr(self, *arguments: str, accept: str | None = None) -> dict[str, Any]:
        """Run a command of Flower and return its answer; see `_ask`."""
        script = str(self.folder.server / "flwr.sh")
        return self._ask([script, *arguments, "--format", "json"], accept)

    def _ask(self, command: list[str], accept: str | None = None) -> dict[str, Any]:
        """Run a command and return its JSON answer; raise RunError if it reports a failure.

        Flower reports a failure in the answer, not by the exit code. A failure whose message has
        the text `accept` is ignored.
        """
        completed = self._call(command)
        try:
            answer: dict[str, Any] = json.loads(completed.stdout[completed.stdout.index("{") :])
        except ValueError:
            output = (completed.stdout + completed.stderr).strip()
            raise RunError(f"Flower answers: {output}") from None
        problem = str(answer.get("error-message", ""))
        if not answer.get("success") and not (accept and accept in problem):
            raise RunError(f"Flower answers: {problem or answer}")
        return answer

    def _call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["sh", *command],
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"Flower does not answer within {PATIENCE:.0f} s") from None

    def _start(self, name: str, script: Path, **variables: int) -> None:
        self.processes.start(name, ["sh", str(script)], self.environment(**variables))

    def environment(self, **variables: int) -> dict[str, str]:
        """Return the environment of a process of the federation."""
        programs = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
            # Clients' own apps are found in the folder in which this command was started.
            "PYTHONPATH": os.pathsep.join(
                filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())])
            ),
            "PYTHONUNBUFFERED": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "FEDGH_FORMAT": "json",
            "FEDGH_BIND": "127.0.0.1",
            "FEDGH_PORT": str(self._port),
            "FEDGH_SUPERLINK": f"127.0.0.1:{self._port}",
            **{name: str(value) for name, value in variables.items()},
        }


@contextmanager
def deployed(folder: FederationFolder, clients: int, say: Say) -> Iterator[Deployment]:
    """Run a federation for the duration of the block; afterwards end all its processes."""
    with locked(folder):
        end_orphans(folder.processes)
        deployment = Deployment(folder, clients, say)
        try:
            deployment.start()
            yield deployment
        finally:
            try:
                say("ending all processes")
            finally:  # also if the output is closed, or after a second Ctrl-C
                deployment.processes.end()


@contextmanager
def locked(folder: FederationFolder) -> Iterator[None]:
    """Lock a federation against a second process; the lock is released even by kill -9."""
    with ExitStack() as stack:
        try:
            stack.enter_context(files.locked(folder.path / ".lock"))
        except BlockingIOError:
            raise RunError(
                f"{folder.path} is running already; see `fedgh flower status`, or end it with "
                "`fedgh flower stop`"
            ) from None
        yield


def follow(
    deployment: Deployment,
    run: int,
    out: Path,
    finished_round: Callable[[Round], None],
    check: Callable[[], None] = lambda: None,
) -> RunFolder:
    """Wait until a run has finished, and return its folder; raise RunError if it failed.

    `finished_round` is called with each new record. `check` is called several times per second and
    may raise an exception to stop waiting.
    """
    folder, seen = RunFolder(out), len(RunFolder(out).records())
    next_query, failed_queries = time.monotonic() + STATUS_INTERVAL, 0
    while True:
        check()
        deployment.restart_nodes()
        session = Session.read(out)
        finished = folder.finished  # before the records, which are complete if it is true
        records = folder.records()
        seen = min(seen, len(records))  # a restarted server repeats rounds that were not committed
        for record in records[seen:]:
            finished_round(record)
            seen += 1
        _raise_error_of(run, session)
        if session is not None and session.run == run and finished:
            return folder
        if time.monotonic() > next_query:
            try:
                status, outcome = deployment.status(run)
            except RunError:
                failed_queries += 1
                if failed_queries == MAX_FAILED_QUERIES:
                    raise
                status, outcome = "unknown", ""
            if status == "finished":
                if folder.finished:
                    return folder
                _raise_error_of(run, Session.read(out))  # it may have been written since
                log_end = "\n".join(deployment.run_log(run).strip().splitlines()[-5:])
                raise RunError(f"the run has ended ({outcome or 'no reason given'}):\n{log_end}")
            next_query = time.monotonic() + STATUS_INTERVAL
        time.sleep(0.3)


def _raise_error_of(run: int, session: Session | None) -> None:
    if session is not None and session.run == run and session.error is not None:
        raise RunError(session.error)


def free_ports(count: int) -> list[int]:
    """Return `count` free ports of 127.0.0.1."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
