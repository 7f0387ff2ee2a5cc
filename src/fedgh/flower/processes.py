"""Processes that this one starts, knows by name, and takes with it when it ends."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIG_IGN, SIGHUP, SIGINT, SIGKILL, SIGTERM
from types import FrameType

from pydantic import PositiveInt, TypeAdapter, ValidationError

from fedgh.errors import RunError, printable
from fedgh.files import (
    check_no_link,
    make_folder,
    open_append,
    open_regular,
    read_bytes,
    write_atomic,
)

GRACE = 15.0
"""Seconds between a polite request to end and the other kind."""


MAX_LAST_WORDS = 2**16
"""Bytes at the end of a log in which the reason of an end is looked for."""

MAX_REGISTER = 2**24
"""Bytes of the file of processes: a line for each of some hundred thousand."""


@dataclass(frozen=True)
class _Register:
    """The process that started others, and the number and start time of each of these."""

    starter: PositiveInt
    processes: dict[str, tuple[PositiveInt, int | None]]


class Processes:
    """Each is the leader of its own group, so that its children end with it and Ctrl-C spares it.

    Their numbers are in a file: whoever comes after a kill -9 can still end them.
    """

    def __init__(self, register: Path, logs: Path) -> None:
        self._register = register
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start a process; what it prints goes to its log."""
        check_no_link(self._logs)
        make_folder(self._logs)
        with open_append(self.log(name)) as log:
            self._running[name] = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._write()

    def exit_code(self, name: str) -> int | None:
        """With what a process has ended; None while it runs."""
        return self._running[name].poll()

    def log(self, name: str) -> Path:
        """Where a process prints."""
        return self._logs / f"{name}.log"

    def last_words(self, name: str, lines: int = 3) -> str:
        """The end of a log: usually the reason."""
        with open_regular(self.log(name)) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LAST_WORDS))
            text = log.read(MAX_LAST_WORDS).decode(errors="replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def end(self) -> None:
        """End all of them and wait until they are gone."""
        with _undisturbed():
            end_groups([process.pid for process in self._running.values()])
            for process in self._running.values():
                process.wait()
            self._running.clear()
            self._register.unlink(missing_ok=True)

    def _write(self) -> None:
        leaders = {name: process.pid for name, process in self._running.items()}
        content = {
            "starter": os.getpid(),
            "processes": {name: [pid, _began(pid)] for name, pid in leaders.items()},
        }
        write_atomic(self._register, json.dumps(content).encode())


def registered(register: Path) -> tuple[int, dict[str, int]]:
    """Who has started processes, and those of them that are still there, by name."""
    try:
        content = TypeAdapter(_Register).validate_json(read_bytes(register, MAX_REGISTER))
    except (OSError, ValidationError) as error:
        raise RunError(f"{register} cannot be read ({printable(str(error))})") from None
    there = {
        name: pid
        for name, (pid, began) in content.processes.items()
        if group_is_alive(pid) and _began(pid) in (began, None)  # else the number is another's
    }
    return content.starter, there


def end_orphans(register: Path) -> None:
    """End what somebody has left who was killed."""
    if register.exists():
        end_groups(list(registered(register)[1].values()))
        register.unlink(missing_ok=True)


def _began(pid: int) -> int | None:
    """When a process began, in the clock of the system, where it tells."""
    fields = _stat(Path(f"/proc/{pid}"))
    return int(fields[19]) if fields else None


@contextmanager
def clean_end() -> Iterator[Callable[[], None]]:
    """Whoever asks this process to end, or closes its terminal, gets what Ctrl-C gets.

    A long block calls what it is given from time to time: an exception that a signal raises in
    a destructor or a callback is lost, but that somebody has asked is remembered.
    """
    asked = False

    def interrupt(_: int, __: FrameType | None) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (SIGHUP, SIGINT, SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Whoever cannot wait for a clean end still gets one."""
    before = {number: signal.signal(number, SIG_IGN) for number in (SIGHUP, SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_groups(leaders: list[int]) -> None:
    """Ask groups of processes to end; after a while, make them."""
    for number in (SIGTERM, SIGKILL):
        for leader in leaders:
            _signal(leader, number)
        end = time.monotonic() + GRACE
        while time.monotonic() < end:
            if not any(map(group_is_alive, leaders)):
                return
            time.sleep(0.1)


def _signal(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or another's by now
        os.killpg(leader, number)


def group_is_alive(leader: int) -> bool:
    """Whether anybody of a group is left; one that has ended unnoticed does not count."""
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if not Path("/proc/self/stat").exists():
        return True
    found = [fields for fields in map(_stat, Path("/proc").glob("[0-9]*")) if fields]
    return any(fields[0] not in "ZX" for fields in found if int(fields[2]) == leader)


def _stat(process: Path) -> list[str]:
    """State, parent, group and so on, from Linux's own book-keeping; empty where there is none."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
