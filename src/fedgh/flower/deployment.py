"""A whole federation on this machine: TLS, keys and processes as between organisations.

It is started by the scripts of its folder, the same that an operator and participants start by
hand, on ports that are free. Whatever happens, nothing of it is left running.
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
from fedgh.flower.node import explained
from fedgh.flower.processes import Processes, end_orphans
from fedgh.flower.session import Session
from fedgh.runs.folder import RunFolder

PATIENCE = 90.0
"""Seconds for the SuperLink to answer."""

LOOK_EVERY = 15.0
"""Seconds between questions to Flower how a run is; its own folder tells more, and sooner."""

MAX_TROUBLES = 5
"""Questions to Flower that may go unanswered."""

SOONEST_RESTART, LATEST_RESTART = 5.0, 15.0
"""Seconds before a participant's node is started again; Flower refuses a key for a while."""

Say = Callable[[str], None]


class Deployment:
    """The processes of a federation."""

    def __init__(self, folder: FederationFolder, clients: int, say: Say) -> None:
        self.folder = folder
        self.processes = Processes(folder.processes, folder.logs)
        self._clients = clients
        self._say = say
        self._port, *self._node_ports = free_ports(1 + clients)
        self._next_start: dict[int, float] = {}  # of a node that has ended: when it is due
        self._wait = dict.fromkeys(range(clients), SOONEST_RESTART)

    def start(self) -> None:
        """Start everything; afterwards participants are on their way in."""
        self._say("starting the SuperLink")
        self._start("superlink", self.folder.server / "superlink.sh")
        self._wait_until_healthy()
        self._start("superexec", self.folder.server / "superexec.sh")
        self._say(f"registering the keys of {self._clients} participants")
        for client in range(self._clients):
            self._register(client)
        for client in range(self._clients):
            self.start_node(client)

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a participant."""
        script = self.folder.participant(client) / "node.sh"
        self._start(f"node-{client}", script, FEDGH_NODE_PORT=self._node_ports[client])

    def train(self, out: Path) -> int:
        """Have Flower start a run; its number."""
        script = self.folder.server / "train.sh"
        return int(self._ask([str(script), str(out.absolute())])["run-id"])

    def tend(self) -> None:
        """Start nodes again that have ended; without the SuperLink there is no federation."""
        for name in ("superlink", "superexec"):
            code = self.processes.exit_code(name)
            if code is not None:
                raise RunError(
                    f"the {name} has ended (exit code {code}):\n{self.processes.last_words(name)}"
                )
        now = time.monotonic()
        for client in range(self._clients):
            code = self.processes.exit_code(f"node-{client}")
            if code is None:
                continue
            if client not in self._next_start:
                wait = self._wait[client]
                self._wait[client] = min(2 * wait, LATEST_RESTART)
                self._next_start[client] = now + wait
                reason = explained(self.processes.last_words(f"node-{client}", lines=40))
                self._say(
                    f"the node of client {client} has ended (exit code {code}"
                    f"{': ' + reason if reason else ''}); next start in {wait:.0f} s"
                )
            elif now >= self._next_start[client]:
                del self._next_start[client]
                self.start_node(client)

    def status(self, run: int) -> tuple[str, str]:
        """Flower's view of a run: pending, running, finished; and how it has finished."""
        answer = self.flwr("list", "federation", "--run-id", str(run))
        status, _, how = str(answer["runs"][0]["status"]).partition(":")
        return status, how

    def run_log(self, run: int) -> str:
        """What the server's side of a run has printed."""
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
        raise RunError(f"the SuperLink does not start:\n{self.processes.last_words('superlink')}")

    def _register(self, client: int) -> None:
        key = f"participants/{client}.pub"
        self.flwr("supernode", "register", key, "federation", accept="already in use")

    def flwr(self, *arguments: str, accept: str | None = None) -> dict[str, Any]:
        """Give a command to Flower; return what it answers."""
        script = str(self.folder.server / "flwr.sh")
        return self._ask([script, *arguments, "--format", "json"], accept)

    def _ask(self, command: list[str], accept: str | None = None) -> dict[str, Any]:
        """What Flower's command answers; it reports failure in words, not by its exit code."""
        done = self._call(command)
        try:
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            raise RunError(f"Flower answers: {(done.stdout + done.stderr).strip()}") from None
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
            # So that a participant's own app is found where this command was given.
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
    """A federation that runs for the time of a block."""
    with locked(folder):
        end_orphans(folder.processes)
        deployment = Deployment(folder, clients, say)
        try:
            deployment.start()
            yield deployment
        finally:
            try:
                say("ending all processes")
            finally:  # also when nobody listens any more, or somebody is impatient
                deployment.processes.end()


@contextmanager
def locked(folder: FederationFolder) -> Iterator[None]:
    """Keep a second process from starting the same federation; released even by kill -9."""
    with ExitStack() as stack:
        try:
            stack.enter_context(files.locked(folder.path / ".lock"))
        except BlockingIOError:
            raise RunError(
                f"{folder.path} is up already; see `fedgh flower status`, `fedgh flower stop`"
            ) from None
        yield


def follow(
    deployment: Deployment,
    run: int,
    out: Path,
    finished_round: Callable[[Round], None],
    check: Callable[[], None] = lambda: None,
) -> RunFolder:
    """Watch a run until it has finished; what ended it otherwise is a RunError.

    `check` is called all the time, and may raise.
    """
    folder, seen = RunFolder(out), len(RunFolder(out).records())
    look, troubles = time.monotonic() + LOOK_EVERY, 0
    while True:
        check()
        deployment.tend()
        session = Session.read(out)
        records = folder.records()
        seen = min(seen, len(records))  # a server that had to go back plays some rounds again
        for record in records[seen:]:
            finished_round(record)
            seen += 1
        _raise_error_of(run, session)
        if session is not None and session.run == run and folder.finished:
            return folder
        if time.monotonic() > look:
            try:
                status, how = deployment.status(run)
            except RunError:
                troubles += 1
                if troubles == MAX_TROUBLES:
                    raise
                status, how = "unknown", ""
            if status == "finished":
                if folder.finished:
                    return folder
                _raise_error_of(run, Session.read(out))  # it may just have been written
                words = "\n".join(deployment.run_log(run).strip().splitlines()[-5:])
                raise RunError(f"the run has ended ({how or 'no reason given'}):\n{words}")
            look = time.monotonic() + LOOK_EVERY
        time.sleep(0.3)


def _raise_error_of(run: int, session: Session | None) -> None:
    if session is not None and session.run == run and session.error is not None:
        raise RunError(session.error)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
