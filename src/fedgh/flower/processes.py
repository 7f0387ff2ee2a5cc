"""Processes that this process starts by name, and ends when it ends itself."""

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
"""Seconds between SIGTERM and SIGKILL."""

MAX_LOG_END = 2**16
"""Maximum number of bytes that are read from the end of a log."""

MAX_REGISTER = 2**24
"""Maximum size in bytes of the file of processes, enough for some hundred thousand."""


@dataclass(frozen=True)
class _Register:
    """The PID of the process that started others, and the PID and start time of each of these."""

    starter: PositiveInt
    processes: dict[str, tuple[PositiveInt, int | None]]


class Processes:
    """Processes that end together.

    Each leads its own process group, so that its children end with it and Ctrl-C does not reach it.
    Their PIDs are in the file `register`, so that a later process can end them if this one is
    killed.
    """

    def __init__(self, register: Path, logs: Path) -> None:
        self._register = register
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start a process; its output is appended to its log."""
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
        """Return the exit code of a process, or None while it runs."""
        return self._running[name].poll()

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self._logs / f"{name}.log"

    def log_end(self, name: str, lines: int = 3) -> str:
        """Return the last lines of a log, which usually say why the process ended."""
        with open_regular(self.log(name)) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG_END))
            text = log.read(MAX_LOG_END).decode(errors="replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def end(self) -> None:
        """End all processes and wait until they have ended; signals are ignored meanwhile."""
        with _ignored_signals():
            end_groups([process.pid for process in self._running.values()])
            for process in self._running.values():
                process.wait()
            self._running.clear()
            self._register.unlink(missing_ok=True)

    def _write(self) -> None:
        leaders = {name: process.pid for name, process in self._running.items()}
        content = {
            "starter": os.getpid(),
            "processes": {name: [pid, _start_time(pid)] for name, pid in leaders.items()},
        }
        write_atomic(self._register, json.dumps(content).encode())


def running_processes(register: Path) -> tuple[int, dict[str, int]]:
    """Return the PID of the process that started others, and the PIDs of those that run, by name.

    Raise RunError if the register cannot be read.
    """
    try:
        content = TypeAdapter(_Register).validate_json(read_bytes(register, MAX_REGISTER))
    except (OSError, ValidationError) as error:
        raise RunError(f"{register} cannot be read ({printable(str(error))})") from None
    running = {
        name: pid
        for name, (pid, start_time) in content.processes.items()
        # With another start time, the operating system has given the PID to another process.
        if group_is_alive(pid) and _start_time(pid) in (start_time, None)
    }
    return content.starter, running


def end_orphans(register: Path) -> None:
    """End the processes of a register whose starter was killed, and delete the register."""
    if register.exists():
        end_groups(list(running_processes(register)[1].values()))
        register.unlink(missing_ok=True)


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks, or None where there is no /proc."""
    fields = _stat(Path(f"/proc/{pid}"))
    return int(fields[19]) if fields else None


@contextmanager
def clean_end() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt for SIGTERM and SIGHUP (a closed terminal), too.

    A long block must call the function that it is given from time to time. Python drops an
    exception that a signal raises in a destructor or a callback; the function raises it again.
    """
    interrupted = False

    def interrupt(_: int, __: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (SIGHUP, SIGINT, SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """Ignore SIGHUP, SIGINT and SIGTERM: a second Ctrl-C would leave processes running."""
    before = {number: signal.signal(number, SIG_IGN) for number in (SIGHUP, SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_groups(leaders: list[int]) -> None:
    """End groups of processes with SIGTERM, and after GRACE seconds with SIGKILL."""
    for number in (SIGTERM, SIGKILL):
        for leader in leaders:
            _signal(leader, number)
        end = time.monotonic() + GRACE
        while time.monotonic() < end:
            if not any(map(group_is_alive, leaders)):
                return
            time.sleep(0.1)


def _signal(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # ended, or the PID is another user's now
        os.killpg(leader, number)


def group_is_alive(leader: int) -> bool:
    """Return true if a process group has a process that is not a zombie."""
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if not Path("/proc/self/stat").exists():
        return True
    processes = [fields for fields in map(_stat, Path("/proc").glob("[0-9]*")) if fields]
    return any(fields[0] not in "ZX" for fields in processes if int(fields[2]) == leader)


def _stat(process: Path) -> list[str]:
    """Return state, parent, group and so on of a process from its folder in /proc, or []."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
