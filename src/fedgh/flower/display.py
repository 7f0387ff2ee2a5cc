"""Show a federation in the terminal: its status, and the progress of `fedgh flower up`."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedgh.errors import printable
from fedgh.flower.current import CurrentRound
from fedgh.flower.engine import MAX_TRIES
from fedgh.flower.status import (
    ClientStatus,
    FederationStatus,
    RoundStatus,
    client_status,
    round_status,
)
from fedgh.formats import few, human_bytes, percent
from fedgh.report.terminal import say
from fedgh.training.callbacks import Log
from fedgh.training.progress import Live

MIN_PAUSE = 5.0
"""Seconds between two lines about a round, where nothing can be animated."""

MAX_ROWS = 12
"""Maximum number of clients that are shown during a round."""

logger = logging.getLogger(__name__)


class RoundLines:
    """Lines about the round in progress: one when something has changed, but not too often."""

    def __init__(self) -> None:
        self._shown = (0, 0, 0)  # round, try, clients that have ended
        self._next = 0.0  # time of the next line

    def next(self, current: RoundStatus) -> str | None:
        """Return a line, or None if it is too early or nothing has changed."""
        state = (current.round, current.tries, current.asked - len(current.awaited))
        if state == self._shown or time.monotonic() < self._next or not current.awaited:
            return None
        self._shown, self._next = state, time.monotonic() + MIN_PAUSE
        return round_line(current)


class UpBars(Live):
    """A callback for `fedgh flower up`: it also shows the clients in the round in progress."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._lines = RoundLines()

    def watch(self, current: CurrentRound) -> None:
        """Show who has answered and who is awaited."""
        status = round_status(current)
        if not self._animated:
            line = self._lines.next(status)
            if line is not None:
                say(self.console, line)
            return
        asked = [client_status(k, one, current.connected) for k, one in current.in_round().items()]
        self._bar.update(
            self._clients, completed=status.asked - len(status.awaited), total=status.asked
        )
        self.show_below(Group(round_line(status), clients_table(asked, MAX_ROWS)))


class UpLog(Log):
    """A callback for `fedgh flower up` that writes to the log of fedgh."""

    def __init__(self) -> None:
        self._lines = RoundLines()

    def __enter__(self) -> "UpLog":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def watch(self, current: CurrentRound) -> None:
        """Log who has answered and who is awaited."""
        line = self._lines.next(round_status(current))
        if line is not None:
            logger.info(line)


def clients_table(clients: Sequence[ClientStatus], max_rows: int | None = None) -> Table:
    """Return a table of clients: those that are awaited first, if not all can be shown."""
    table = Table("client", "connected", "round", "state", "time", "last answer", box=None)
    shown = list(clients)
    if max_rows is not None and len(clients) > max_rows:
        shown = sorted(clients, key=lambda one: one.state != "awaited")[:max_rows]
    for one in shown:
        connected = {None: "?", True: "yes", False: "no"}[one.connected]
        state = one.state or "not asked yet"
        if one.reason not in ("", state):
            state += f": {printable(one.reason)}"
        last = "-" if one.last_answer_age is None else f"{age(one.last_answer_age)} ago"
        table.add_row(
            str(one.client),
            connected,
            "-" if one.round is None else str(one.round),
            Text(state),
            "-" if one.seconds is None else age(one.seconds),
            last if one.last_round is None else f"{last}, round {one.last_round}",
        )
    if len(shown) < len(clients):
        table.add_row(f"and {len(clients) - len(shown)} more")
    return table


def round_line(current: RoundStatus) -> str:
    """Return a line about the round in progress."""
    awaited = f"; awaited: {few(list(map(str, current.awaited)))}" if current.awaited else ""
    failed = f", {current.failed} failed" if current.failed else ""
    again = f" (try {current.tries} of {MAX_TRIES})" if current.tries > 1 else ""
    return (
        f"round {current.round}{again}: {current.answered} of {current.asked} clients have "
        f"answered{failed} after {age(current.age)} of at most {age(current.deadline)}{awaited}"
    )


def age(seconds: float) -> str:
    """Return a duration for people: 12 s, 3 min 5 s, 2 h 10 min."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def print_status(status: FederationStatus, console: Console, logs: Path) -> None:
    """Print the status of a federation."""
    if status.processes:
        table = Table("process", "PID", "log", box=None)
        for name, pid in status.processes.items():
            table.add_row(name, str(pid), str(logs / f"{name}.log"))
        console.print(table)
    elif status.state == "running":
        say(console, "the server works on the run; it was not started by `fedgh flower up`")
    elif status.superlink is not None:
        say(console, f"a SuperLink runs at {status.superlink}; no server works on the run")
    else:
        say(console, "nothing is running")
    if status.rounds is None:
        say(console, f"{status.run}: no run yet")
    else:
        say(
            console,
            f"{status.run}: round {status.rounds_completed} of {status.rounds}, accuracy "
            f"{percent(status.accuracy)}, {human_bytes(status.bytes)} sent, {status.state}",
        )
    if status.current is not None:
        say(console, round_line(status.current))
    if status.state == "stopped" and status.silence is not None:
        say(console, f"the last sign of life of the server was {age(status.silence)} ago")
    if status.error is not None:
        say(console, f"the last start ended with an error: {printable(status.error)}")
    console.print(clients_table(status.clients))
