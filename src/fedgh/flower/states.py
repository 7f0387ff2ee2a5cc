"""The states that a client keeps on its own machine, for use outside the federation.

A client does not learn which of its answers the server has counted, except from requests: each
request names the round of the last state that the server counts (`Request.trained`). The client
keeps its last request in request.json. Therefore a run has one state that is *counted*, that of the
round which the last request names. The state of the request's own round, if it is here, is
*unconfirmed*: the client has sent its answer, and only the next request would tell if it was in
time. The last round of a run has no next request.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedgh.core.types import Payload
from fedgh.errors import ConfigError, RunError, WireError
from fedgh.files import read_bytes, write_atomic
from fedgh.flower import messages
from fedgh.flower.answers import answered_rounds
from fedgh.flower.messages import MAX_JSON, Request
from fedgh.runs.checkpoint import ClientFiles, stored_rounds

MAX_NAME = 2**16
"""Maximum size of name.txt in bytes."""

MAX_REQUEST = 8 * MAX_JSON
"""Maximum size of request.json in bytes: a number may be longer there than in the message."""

MAX_LISTED = 10
"""Maximum number of runs that an error lists."""


@dataclass(frozen=True)
class StoredRun:
    """The files that a client keeps of a run."""

    folder: Path  # states/experiments/HASH/client-K
    name: str
    time: datetime  # of the last request

    @classmethod
    def read(cls, folder: Path) -> "StoredRun":
        """Return the run in a folder; raise RunError if a file is damaged."""
        try:
            name = read_bytes(folder / "name.txt", MAX_NAME).decode().rstrip("\n")
            last = (folder / "turn.json").stat().st_mtime
        except (OSError, ValueError) as error:
            raise RunError(f"{folder} cannot be read ({error}); put it back from a copy") from None
        return cls(folder, name, datetime.fromtimestamp(last))

    def __str__(self) -> str:
        rounds = max(stored_rounds(self.folder), default=0)
        trained = f"trained up to round {rounds}" if rounds else "not trained yet"
        return f"{self.name}, last request {self.time:%Y-%m-%d %H:%M}, {trained}"

    def request(self) -> Request:
        """Return the last request; raise RunError if it is missing or damaged."""
        path = self.folder / "request.json"
        if not path.exists():
            raise RunError(
                f"{self.name}: its settings are not stored, because no request was accepted, or an "
                "earlier version of fedgh trained it; take part in another round"
            )
        try:
            request = messages.parse_request(read_bytes(path, MAX_REQUEST))
        except (OSError, WireError) as error:
            raise RunError(f"{path} cannot be read ({error}); put it back from a copy") from None
        if request.experiment != self.name:
            raise RunError(f"{path} is of another run; put it back from a copy")
        return request

    def unconfirmed(self, request: Request) -> int | None:
        """Return the round of the unconfirmed state, or None if there is none."""
        answered = request.round in answered_rounds(self.folder / "answers")
        return request.round if answered and request.round in stored_rounds(self.folder) else None


def keep_request(folder: Path, request: Request) -> None:
    """Store the request that a client has accepted, in place of the one before."""
    write_atomic(folder / "request.json", messages.dump_request(request))


def stored_runs(states: Path, client: int) -> list[StoredRun]:
    """Return the runs of which a client keeps files, the one with the newest request first."""
    names = states.glob(f"experiments/*/client-{client}/name.txt")
    return sorted(
        (StoredRun.read(name.parent) for name in names),
        key=lambda run: (run.time, run.name),
        reverse=True,
    )


def find_run(runs: Sequence[StoredRun], name: str) -> StoredRun:
    """Return the run with this name, or with this beginning of a name; raise ConfigError."""
    found = [run for run in runs if run.name == name] or [
        run for run in runs if run.name.startswith(name)
    ]
    if len(found) != 1:
        what = "names several runs" if found else "names no run of this client"
        raise ConfigError(f"--run {name} {what}; {listed(found or runs)}")
    return found[0]


def listed(runs: Sequence[StoredRun]) -> str:
    """Return a text that lists runs, one per line."""
    more = [f"... and {len(runs) - MAX_LISTED} older ones"] if len(runs) > MAX_LISTED else []
    return "\n".join(["runs here:", *(f"  {run}" for run in runs[:MAX_LISTED]), *more])


def last_state(folder: Path | str) -> Payload:
    """Return the newest state of a client: its network's tensors have names with `model.`.

    `folder` is the folder of a run and client, `states/experiments/HASH/client-K`. If the last
    answer of the client came too late, the server has not counted this state.
    """
    folder = Path(folder)
    client = re.fullmatch(r"client-(\d+)", folder.name)
    state = None
    if client is not None and (folder / "name.txt").exists():
        experiment = read_bytes(folder / "name.txt", MAX_NAME).decode().rstrip("\n")
        state = ClientFiles(folder, 2**62, experiment).load(int(client[1]))
    if state is None:
        raise RunError(f"{folder} has no state of a client; give states/experiments/HASH/client-K")
    return state
