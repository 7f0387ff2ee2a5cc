"""States on disk that are complete or absent, never half.

A checkpoint of round t is one file per client that has changed, then the server's file. The
server's file names the round and replaces its predecessor in one step: that step is the commit.
Client files of later rounds are left-overs of an interrupted one and do not count; a file that
the commit has made superfluous is deleted only afterwards. Every file carries the identity of its
run: a state of another run is refused.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.files import read_bytes, replace, sync_folder, write_atomic
from fedgh.renames import SERVER_STATE, with_current_names
from fedgh.runs.history import Mark
from fedgh.runs.sealed import MAX_STATE, About, pack, read_about, unpack

_CLIENT_FILE = re.compile(r"client-(\d+)\.round-(\d+)\.safetensors")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(
            f"{path} cannot be read ({reason or error}); the run cannot be resumed until it can: "
            "allow it, or put it back from a copy"
        ) from None


class ServerFile:
    """The server's state after the last completed round, and how far the run has come."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server.safetensors"

    def commit(self, mark: Mark, state: Payload, run: str) -> None:
        """Make this the point that a resumed run starts from."""
        write_atomic(self.path, pack(state, round=mark.round, history=mark.digest, run=run))

    def load(self, run: str) -> tuple[Mark, Payload]:
        """How far the run has come, and the state that it left."""
        with _explained(self.path):
            about, state = unpack(read_bytes(self.path, MAX_STATE))
            return _mark(about, run), with_current_names(state, SERVER_STATE)

    def mark(self, run: str) -> Mark:
        """How far the run has come."""
        with _explained(self.path):
            return _mark(read_about(self.path), run)


def _mark(about: About, run: str) -> Mark:
    if about.get("run") != run:
        raise ValueError("it is the state of another run")
    round, digest = about.get("round"), about.get("history")
    if not isinstance(round, int) or not isinstance(digest, str):
        raise ValueError("it does not say which round it is of")
    return Mark(round, digest)


class ClientFiles:
    """The states of the clients that one host is responsible for.

    A state may be written before its checkpoint is due: until the commit it is a left-over, and
    what it replaces stays.
    """

    def __init__(self, folder: Path, round: int, run: str = "") -> None:
        self.folder = folder
        self.run = run  # whose states these are
        self._current = {client: path for client, _, path in newest_states(folder, round)}
        self._superseded: list[tuple[int, Path]] = []  # the round of the successor, the file
        self._sealed = round

    def round(self, client: int) -> int:
        """The round that left the client's last state, 0 when it never took part."""
        path = self._current.get(client)
        return 0 if path is None else _round_of(path)

    def load(self, client: int, limit: int = MAX_STATE) -> Payload | None:
        """The client's last committed state of at most `limit` bytes; None: it never took part."""
        found = self._read(client, limit)
        return None if found is None else found[1]

    def read(self, client: int) -> bytes | None:
        """The same as it is on disk."""
        found = self._read(client)
        return None if found is None else found[0]

    def _read(self, client: int, limit: int = MAX_STATE) -> tuple[bytes, Payload] | None:
        path = self._current.get(client)
        if path is None:
            return None
        with _explained(path):
            content = read_bytes(path, limit)
            about, state = unpack(content)
            self._check_whose(client, path, about)
        return content, state

    def check(self, trained: Sequence[int]) -> None:
        """Refuse a checkpoint in which the state of a client that has trained is not there.

        `trained` says in which round each client last did, 0 for never.
        """
        for client, last in enumerate(trained):
            if self.round(client) < last:
                raise RunError(
                    f"{self.folder} lacks the state of client {client}, which trained in round "
                    f"{last}; the run cannot be resumed"
                )
            if last:  # without reading it all; one that was cut short is found out
                path = self._current[client]
                with _explained(path):
                    self._check_whose(client, path, read_about(path))

    def _check_whose(self, client: int, path: Path, about: About) -> None:
        expected = {"client": client, "round": _round_of(path), "run": self.run}
        if {key: about.get(key) for key in expected} != expected:
            raise ValueError("it is the state of another client, round or run")

    def write(self, round: int, client: int, state: Payload) -> None:
        """Write a client's state after `round`."""
        self.put(round, client, pack(state, client=client, round=round, run=self.run))

    def put(self, round: int, client: int, content: bytes) -> None:
        """Write a client's state after `round`, given as it will be on disk."""
        path = self.folder / f"client-{client:06}.round-{round:06}.safetensors"
        replace(path, content)
        before = self._current.get(client)
        if before is not None and before != path:
            if _round_of(before) > self._sealed:  # no commit has ever named it
                before.unlink(missing_ok=True)
            else:
                self._superseded.append((round, before))
        self._current[client] = path

    def seal(self, round: int) -> None:
        """Make all that was written durable: `round` is about to be committed.

        What the commit before this one has made superfluous can go.
        """
        for successor, path in self._superseded:
            if successor <= self._sealed:
                path.unlink(missing_ok=True)
        self._superseded = [item for item in self._superseded if item[0] > self._sealed]
        self._sealed = round
        sync_folder(self.folder)

    def forget(self, client: int) -> Path | None:
        """Leave a client's file to another host."""
        return self._current.pop(client, None)

    def adopt(self, client: int, path: Path) -> None:
        """Answer for a file that another host has left."""
        self._current[client] = path


def _round_of(path: Path) -> int:
    match = _CLIENT_FILE.fullmatch(path.name)
    assert match is not None
    return int(match[2])


def discard_leftovers(folder: Path, round: int) -> None:
    """Delete what an interrupted round left behind: only states up to `round` count."""
    _discard_all_but(folder, {path for _, _, path in newest_states(folder, round)})


def keep_rounds(folder: Path, rounds: set[int]) -> None:
    """Delete all states but those that these rounds have left."""
    states = [path for path in folder.iterdir() if _CLIENT_FILE.fullmatch(path.name)]
    _discard_all_but(folder, {path for path in states if _round_of(path) in rounds})


def _discard_all_but(folder: Path, keep: set[Path]) -> None:
    for path in folder.iterdir():
        ours = _CLIENT_FILE.fullmatch(path.name) or path.suffix == ".part"
        if ours and path not in keep:
            path.unlink(missing_ok=True)


def newest_states(folder: Path, up_to: int) -> list[tuple[int, int, Path]]:
    """(client, round, file) of each client's last state that is not after `up_to`."""
    newest: dict[int, tuple[int, Path]] = {}
    for path in folder.iterdir():
        match = _CLIENT_FILE.fullmatch(path.name)
        if match is None:
            continue
        client, round = int(match[1]), int(match[2])
        if round <= up_to and round > newest.get(client, (-1, path))[0]:
            newest[client] = (round, path)
    return [(client, round, path) for client, (round, path) in newest.items()]
