"""The file current.json in the run folder: the round in progress, for processes that watch it.

The server app writes it while it runs. It is for people and monitoring only: no result and no
resume depends on it.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedgh.core.types import Job, Reply
from fedgh.errors import MAX_TEXT, RunError, first_mistake, printable
from fedgh.files import read_bytes, replace

NAME = "current.json"

MIN_INTERVAL = 1.0
"""Seconds between two versions of the file, if something has changed."""

MAX_INTERVAL = 5.0
"""Seconds between two versions if nothing has changed: a sign of life."""

MAX_CURRENT = 2**25
"""Maximum size of the file in bytes: enough for a hundred thousand clients."""

Number = Annotated[int, Field(ge=0, lt=2**63)]
Moment = Annotated[float, Field(ge=0, le=1e11)]  # seconds since 1970
ClientState = Literal["awaited", "answered", "failed", "rejected", "late", "not connected"]
Reason = Annotated[str, Field(max_length=MAX_TEXT)]


@dataclass
class ClientProgress:
    """A client as the server sees it: its part in the last round that needed it."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    round: Number = 0  # the last round that needed it
    state: ClientState = "awaited"  # in that round
    asked: Moment | None = None  # when the request was sent
    ended: Moment | None = None  # when the answer came, or the server stopped waiting
    reason: Reason = ""  # of a failure
    answered_round: Number = 0  # of its last answer with a result
    answered: Moment | None = None  # when that came


@dataclass
class CurrentRound:
    """The content of current.json."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    run: str  # identity of the run
    updated: Moment = 0.0  # when the file was written
    ended: bool = False  # true if the server app has ended by itself
    round: Number = 0
    began: Moment = 0.0  # when this try of the round began
    deadline: Moment = 0.0  # seconds that it lasts at most
    tries: Number = 0  # of this round, with the present one
    connected: list[Number] = field(default_factory=list)  # clients, when the server last looked
    clients: dict[Number, ClientProgress] = field(default_factory=dict)

    def in_round(self) -> Mapping[int, ClientProgress]:
        """Return the clients that the server needs in this round."""
        return {number: one for number, one in self.clients.items() if one.round == self.round}


_CURRENT = TypeAdapter(CurrentRound)


def read_current(folder: Path, run: str) -> CurrentRound | None:
    """Return the round in progress, or the last one, of the run with this identity; None without.

    Raise RunError if the file cannot be read.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        current = _CURRENT.validate_json(read_bytes(path, MAX_CURRENT))
    except (OSError, ValidationError) as error:
        reason = first_mistake(error) if isinstance(error, ValidationError) else str(error)
        raise RunError(
            f"{path} cannot be read ({printable(reason)}); delete it, nothing else needs it"
        ) from None
    return current if current.run == run else None


class CurrentFile:
    """The writer of current.json: a thread writes it about once per second.

    A file that cannot be written does not end the run. Without a folder nothing is written.
    """

    def __init__(self, folder: Path | None = None, run: str = "") -> None:
        self._current = CurrentRound(run)
        self._lock = Lock()
        self._changed, self._closed = True, Event()
        self._thread: Thread | None = None
        if folder is not None:
            with suppress(RunError):  # the last answers before a restart of the server
                self._current = read_current(folder, run) or self._current
            self._current.ended = False
            self._thread = Thread(target=self._keep_writing, args=(folder / NAME,), daemon=True)
            self._thread.start()

    def begin(self, jobs: Iterable[Job], seconds: float, tries: int) -> None:
        """Note a try of a round that needs these clients within some seconds."""
        with self._lock:
            current = self._current
            current.began, current.deadline, current.tries = time.time(), seconds, tries
            for job in jobs:
                current.round = job.round
                one = self._of(job.client_id)
                one.round, one.state, one.reason = job.round, "awaited", ""
                one.asked = one.ended = None
            self._changed = True

    def sent(self, client: int) -> None:
        """Note that a request was sent."""
        with self._lock:
            self._of(client).asked = time.time()
            self._changed = True

    def connected(self, clients: Collection[int]) -> None:
        """Note the clients that are connected now."""
        with self._lock:
            found = sorted(clients)
            self._changed |= found != self._current.connected
            self._current.connected = found

    def ended(self, reply: Reply, state: ClientState) -> None:
        """Note the end of a client's part in the round."""
        with self._lock:
            one, now = self._of(reply.client_id), time.time()
            one.state, one.ended = state, now
            one.reason = printable(reply.error or reply.invalid or "")
            if state == "answered":
                one.answered_round, one.answered = reply.round, now
            self._changed = True

    def close(self) -> None:
        """Write the file for the last time."""
        with self._lock:
            self._current.ended = True
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _of(self, client: int) -> ClientProgress:
        return self._current.clients.setdefault(client, ClientProgress())

    def _keep_writing(self, path: Path) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(MIN_INTERVAL)
            with self._lock:
                age = time.time() - self._current.updated
                if not (self._changed or closed or age > MAX_INTERVAL):
                    continue
                self._current.updated, self._changed = time.time(), False
                content = json.dumps(asdict(self._current)).encode() + b"\n"
            with suppress(OSError):  # a full disk ends the run when a round is committed
                replace(path, content)
