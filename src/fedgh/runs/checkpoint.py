"""Checkpoints: the states of the server and the clients on disk, complete or absent.

A checkpoint of round t is written as one file for each client whose state has changed, followed by
the server's file. The server's file names the round and replaces the previous one in one step; this
step is the commit. Client files of later rounds are leftovers of an interrupted round and are
ignored. A client file that a commit has superseded is deleted only after that commit. Every file
contains the identity of its run, and a state of another run is refused.
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
from fedgh.runs.sealed import MAX_STATE, Metadata, pack, read_metadata, unpack

_CLIENT_FILE = re.compile(r"client-(\d+)\.round-(\d+)\.safetensors")


@contextmanager
def _as_run_error(path: Path) -> Iterator[None]:
    """Turn an error while reading the file `path` into a RunError that names it."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(
            f"{path} cannot be read ({reason or error}), so the run cannot be resumed; check its "
            "permissions, or put it back from a copy"
        ) from None


class ServerFile:
    """The file with the server's state after the last committed round."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server.safetensors"

    def commit(self, mark: Mark, state: Payload, run: str) -> None:
        """Write the state from which the run is resumed; this commits the round of `mark`."""
        write_atomic(self.path, pack(state, round=mark.round, history=mark.digest, run=run))

    def load(self, run: str) -> tuple[Mark, Payload]:
        """Return the mark of the last committed round and the server's state after it."""
        with _as_run_error(self.path):
            metadata, state = unpack(read_bytes(self.path, MAX_STATE))
            return _mark(metadata, run), with_current_names(state, SERVER_STATE)

    def mark(self, run: str) -> Mark:
        """Return the mark of the last committed round, without reading the whole file."""
        with _as_run_error(self.path):
            return _mark(read_metadata(self.path), run)


def _mark(metadata: Metadata, run: str) -> Mark:
    if metadata.get("run") != run:
        raise ValueError("it is the state of another run")
    round, digest = metadata.get("round"), metadata.get("history")
    if not isinstance(round, int) or not isinstance(digest, str):
        raise ValueError("it does not name its round")
    return Mark(round, digest)


class ClientFiles:
    """The files with the states of the clients that one host manages.

    A state may be written before the round is committed. Until the commit it counts as a leftover,
    and the file that it replaces stays on disk.
    """

    def __init__(self, folder: Path, round: int, run: str = "") -> None:
        self.folder = folder
        self.run = run  # identity of the run
        self._current = {client: path for client, _, path in newest_states(folder, round)}
        self._superseded: list[tuple[int, Path]] = []  # (round of the new file, old file)
        self._sealed = round

    def round(self, client: int) -> int:
        """Return the round of the client's newest state, 0 if it never took part."""
        path = self._current.get(client)
        return 0 if path is None else _round_of(path)

    def load(self, client: int, limit: int = MAX_STATE) -> Payload | None:
        """Return the client's newest state, or None if it never took part.

        Raise RunError if its file is damaged or has more than `limit` bytes.
        """
        file = self._read(client, limit)
        return None if file is None else file[1]

    def read(self, client: int) -> bytes | None:
        """Return the bytes of the file with the client's newest state, or None."""
        file = self._read(client)
        return None if file is None else file[0]

    def _read(self, client: int, limit: int = MAX_STATE) -> tuple[bytes, Payload] | None:
        path = self._current.get(client)
        if path is None:
            return None
        with _as_run_error(path):
            content = read_bytes(path, limit)
            metadata, state = unpack(content)
            self._check_owner(client, path, metadata)
        return content, state

    def check(self, trained: Sequence[int]) -> None:
        """Raise RunError if the state of a client that has trained is missing or damaged.

        `trained` has for each client the round in which it last trained, 0 for never.
        """
        for client, last in enumerate(trained):
            if self.round(client) < last:
                raise RunError(
                    f"{self.folder} lacks the state of client {client}, which trained in round "
                    f"{last}; the run cannot be resumed"
                )
            if last:  # reading only the metadata also detects a truncated file
                path = self._current[client]
                with _as_run_error(path):
                    self._check_owner(client, path, read_metadata(path))

    def _check_owner(self, client: int, path: Path, metadata: Metadata) -> None:
        expected = {"client": client, "round": _round_of(path), "run": self.run}
        if {key: metadata.get(key) for key in expected} != expected:
            raise ValueError("it is the state of another client, round or run")

    def write(self, round: int, client: int, state: Payload) -> None:
        """Write a client's state after `round`."""
        self.put(round, client, pack(state, client=client, round=round, run=self.run))

    def put(self, round: int, client: int, content: bytes) -> None:
        """Write a client's state after `round`, given as the bytes of its file."""
        path = self.folder / f"client-{client:06}.round-{round:06}.safetensors"
        replace(path, content)
        previous = self._current.get(client)
        if previous is not None and previous != path:
            if _round_of(previous) > self._sealed:  # never committed, so nothing needs it
                previous.unlink(missing_ok=True)
            else:
                self._superseded.append((round, previous))
        self._current[client] = path

    def seal(self, round: int) -> None:
        """Make all written states durable, before `round` is committed.

        Delete the files that the previous commit has superseded.
        """
        for successor, path in self._superseded:
            if successor <= self._sealed:
                path.unlink(missing_ok=True)
        self._superseded = [item for item in self._superseded if item[0] > self._sealed]
        self._sealed = round
        sync_folder(self.folder)

    def forget(self, client: int) -> Path | None:
        """Stop managing a client's file, so that another host can; return its path."""
        return self._current.pop(client, None)

    def adopt(self, client: int, path: Path) -> None:
        """Manage a client's file that another host has given up."""
        self._current[client] = path


def _round_of(path: Path) -> int:
    match = _CLIENT_FILE.fullmatch(path.name)
    assert match is not None
    return int(match[2])


def discard_leftovers(folder: Path, round: int) -> None:
    """Delete the client states of rounds after `round`, and those that are superseded."""
    _discard_all_but(folder, {path for _, _, path in newest_states(folder, round)})


def keep_rounds(folder: Path, rounds: set[int]) -> None:
    """Delete all client states except those written in `rounds`."""
    states = [path for path in folder.iterdir() if _CLIENT_FILE.fullmatch(path.name)]
    _discard_all_but(folder, {path for path in states if _round_of(path) in rounds})


def _discard_all_but(folder: Path, keep: set[Path]) -> None:
    for path in folder.iterdir():
        is_state = _CLIENT_FILE.fullmatch(path.name) or path.suffix == ".part"
        if is_state and path not in keep:
            path.unlink(missing_ok=True)


def newest_states(folder: Path, up_to: int) -> list[tuple[int, int, Path]]:
    """Return (client, round, file) of each client's newest state of a round up to `up_to`."""
    newest: dict[int, tuple[int, Path]] = {}
    for path in folder.iterdir():
        match = _CLIENT_FILE.fullmatch(path.name)
        if match is None:
            continue
        client, round = int(match[1]), int(match[2])
        if round <= up_to and round > newest.get(client, (-1, path))[0]:
            newest[client] = (round, path)
    return [(client, round, path) for client, (round, path) in newest.items()]
