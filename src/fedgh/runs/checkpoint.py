"""Checkpoints: the states of the server and the clients on disk, complete or absent.

A checkpoint of round t is written as one file of each process with the states of its clients that
have changed (a segment), followed by the server's file. The server's file names the round and
replaces the previous one in one step; this step is the commit. Segments of later rounds are
leftovers of an interrupted round and are ignored. The newest state of a client is in the segment of
the latest round that has the client; segments of one round are numbered, for a round that was
computed or changed again. A segment is deleted after a commit that supersedes
all its states; one of which few states are left is copied to the next segment first. Every file
contains the identity of its run, and a state of another run is refused.
"""

import copy
import errno
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.files import PartFile, read_bytes, sync_folder, write_atomic
from fedgh.renames import SERVER_STATE, with_current_names
from fedgh.runs.history import Mark
from fedgh.runs.sealed import (
    MAX_STATE,
    Buffer,
    Metadata,
    pack,
    pieces,
    read_metadata,
    unpack,
)
from fedgh.runs.segment import Index, Span, publish, read_index, read_span

MAX_WASTE = 0.5
"""Largest size of superseded states in segments, relative to the size of all current states."""

_ANOTHER = "it is the state of another client, round or run"

_SEGMENT = re.compile(r"clients-(\d+)\.round-(\d+)\.states")
_SINGLE = re.compile(r"client-(\d+)\.round-(\d+)\.safetensors")
"""Names of files with the state of one client, as run folders of format version 2 have them."""


@contextmanager
def _as_run_error(path: Path, state: str = "") -> Iterator[None]:
    """Turn an error while reading the file `path` into a RunError that names it, and its state."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and _SEGMENT.fullmatch(path.name):
            raise RunError(
                f"{path} was deleted meanwhile; if the run is still training, try again"
            ) from None
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(
            f"{path}{f': {state}' if state else ''} cannot be read ({reason or error}), so the run "
            "cannot be resumed; check its "
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
    """The states of the clients that one process manages.

    States are written to a new file under a temporary name, and loaded from it, too. `seal` makes
    it a segment of the round that is about to be committed.
    """

    def __init__(self, folder: Path, round: int, run: str = "") -> None:
        self.folder = folder
        self.run = run  # identity of the run
        self._index: Index = {}  # the newest state of each client
        self._sizes: dict[Path, int] = {}  # bytes of all states in each segment
        self._live: Counter[Path] = Counter()  # bytes of the newest states in each file
        self._new: PartFile | None = None  # the file that is being written
        self._written: set[int] = set()  # clients whose newest state is in the new file
        self._superseded: list[Path] = []  # by the last seal
        self._number, self._step = 1, 1  # of the next segment, and to the one after it
        for number, path in _segments(folder):
            self._number = max(self._number, number + 1)
            if _round_of(path) <= round:
                with _as_run_error(path):
                    states = self._states_in(path)
                self._sizes[path] = max((span.end for span in states.values()), default=0)
                for client, span in states.items():
                    self._place(client, span)

    def split(self, count: int) -> "list[ClientFiles]":
        """Divide the segments among `count` processes, and return what each of them manages."""
        parts = [copy.copy(self) for _ in range(count)]
        owners = {path: number % count for number, path in enumerate(self._sizes)}
        for number, part in enumerate(parts):
            mine = {path for path, owner in owners.items() if owner == number}
            part._index = {c: span for c, span in self._index.items() if span.path in mine}
            part._sizes = {path: size for path, size in self._sizes.items() if path in mine}
            part._live = Counter({path: self._live[path] for path in mine})
            part._written, part._superseded = set(), []
            part._number, part._step = self._number + number, count
        return parts

    def _states_in(self, path: Path) -> Index:
        single, round = _SINGLE.fullmatch(path.name), _round_of(path)
        if single is None:
            return read_index(path, run=self.run, round=round)
        client = int(single[1])
        expected = {"client": client, "round": round, "run": self.run}
        if not expected.items() <= read_metadata(path).items():
            raise ValueError(_ANOTHER)
        return {client: Span(path, round, 0, path.stat().st_size)}

    @property
    def clients(self) -> list[int]:
        """The clients that have a state here."""
        return list(self._index)

    def round(self, client: int) -> int:
        """Return the round of the client's newest state, 0 if it never took part."""
        span = self._index.get(client)
        return 0 if span is None else span.round

    def load(self, client: int, limit: int = MAX_STATE) -> Payload | None:
        """Return the client's newest state, or None if it never took part.

        Raise RunError if it is damaged or has more than `limit` bytes.
        """
        found = self._read(client, limit)
        return None if found is None else found[1]

    def read(self, client: int) -> bytes | None:
        """Return the client's newest state as bytes, or None if it never took part."""
        found = self._read(client)
        return None if found is None else found[0]

    def _read(self, client: int, limit: int = MAX_STATE) -> tuple[bytes, Payload] | None:
        span = self._index.get(client)
        if span is None:
            return None
        if self._new is not None and span.path == self._new.path:
            self._new.flush()
        with _as_run_error(span.path, f"the state of client {client}"):
            if span.size > limit:
                raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(span.path))
            content = b"".join(read_span(span))
            metadata, state = unpack(content)
            if metadata != {"client": client, "round": span.round, "run": self.run}:
                raise ValueError(_ANOTHER)
        return content, state

    def check(self, trained: Sequence[int]) -> None:
        """Raise RunError if the state of a client that has trained is missing.

        `trained` has for each client the round in which it last trained, 0 for never.
        """
        for client, last in enumerate(trained):
            if self.round(client) < last:
                raise RunError(
                    f"{self.folder} lacks the state of client {client}, which trained in round "
                    f"{last}; the run cannot be resumed"
                )

    def write(self, round: int, client: int, state: Payload) -> None:
        """Write a client's state after `round`."""
        self._put(round, client, pieces(state, client=client, round=round, run=self.run))

    def put(self, round: int, client: int, content: bytes) -> None:
        """Write a client's state after `round`, given as bytes."""
        self._put(round, client, [content])

    def _put(self, round: int, client: int, content: Iterable[Buffer]) -> None:
        try:
            self._append(round, client, content)
            assert self._new is not None
            self._rewrite_new(above=2)
        except BaseException:
            self._discard_new()
            raise

    def _copy(self, client: int) -> None:
        """Copy a client's state to the new file."""
        span = self._index[client]
        self._append(span.round, client, _stored(span))

    def _append(self, round: int, client: int, content: Iterable[Buffer]) -> None:
        if self._new is None:
            self._new = PartFile(self.folder, name="clients")
        start = self._new.size
        for piece in content:
            self._new.write(piece)
        self._place(client, Span(self._new.path, round, start, self._new.size))
        self._written.add(client)

    def _place(self, client: int, span: Span) -> None:
        self._drop(client)
        self._index[client] = span
        self._live[span.path] += span.size

    def _drop(self, client: int) -> Span | None:
        span = self._index.pop(client, None)
        if span is not None:
            self._live[span.path] -= span.size
        self._written.discard(client)
        return span

    def _rewrite_new(self, above: float) -> None:
        """Copy the newest states of the new file to another one if they take little of it.

        Otherwise, if the file has at most `above` times their size, do nothing.
        """
        old = self._new
        if old is None or old.size <= above * self._live[old.path]:
            return
        old.flush()
        self._new = None
        try:
            for client in sorted(self._written):
                self._copy(client)
        finally:
            old.discard()

    def _discard_new(self) -> None:
        if self._new is not None:
            self._new.discard()  # it would take up space on a full disk
            self._new = None

    def seal(self, round: int) -> None:
        """Make all written states durable, as a segment of `round`, before that is committed."""
        self.delete_superseded()
        try:
            self._rewrite_new(above=1 + MAX_WASTE)
            self._copy_from_wasteful()
            if self._written:
                self._publish(round)
            else:  # other processes have taken all its states
                self._discard_new()
        except BaseException:
            self._discard_new()
            raise
        self._superseded = [path for path in self._sizes if not self._live[path]]

    def _publish(self, round: int) -> None:
        assert self._new is not None
        name = f"clients-{self._number:06}.round-{round:06}.states"
        written = {client: self._index[client] for client in sorted(self._written)}
        path, size = self.folder / name, self._new.size
        index = publish(self._new, name, written, run=self.run, round=round)
        sync_folder(self.folder)
        self._sizes[path] = size
        self._live[path] = self._live.pop(self._new.path)
        self._index |= index
        self._new, self._number = None, self._number + self._step
        self._written.clear()

    def _copy_from_wasteful(self) -> None:
        """Copy states from segments with few newest ones, which can then be deleted."""
        while True:
            used = [path for path in self._sizes if self._live[path]]
            waste = {path: self._sizes[path] - self._live[path] for path in used}
            if sum(waste.values()) <= MAX_WASTE * self._live.total():
                return
            path = max(used, key=lambda path: waste[path] / self._sizes[path])
            with _as_run_error(path):
                states = self._states_in(path)
            for client, span in states.items():
                if self._index.get(client) == span:
                    self._copy(client)

    def delete_superseded(self) -> None:
        """Delete the segments that the last seal superseded; call this after its commit."""
        for path in self._superseded:
            path.unlink(missing_ok=True)
            del self._sizes[path], self._live[path]
        self._superseded = []

    def forget(self, client: int) -> Span | None:
        """Stop managing a client's state, so that another process can; return its position."""
        span = self._drop(client)
        if span is not None and self._new is not None:
            self._new.flush()
        return span

    def adopt(self, client: int, span: Span) -> None:
        """Manage a client's state that another process has given up: copy it."""
        self._put(span.round, client, _stored(span))

    def delete_unused(self) -> None:
        """Delete the segments without a current state."""
        self._superseded = [path for path in self._sizes if not self._live[path]]
        self.delete_superseded()

    def erase(self, client: int, round: int) -> None:
        """Delete all states of a client after the committed `round`, also superseded ones."""
        self._drop(client)
        try:
            for each in self.clients:
                self._copy(each)
        except BaseException:
            self._discard_new()
            raise
        self.seal(round)
        self.delete_superseded()


def _stored(span: Span) -> Iterator[bytes]:
    """Yield the bytes of a state. Raise RunError if they cannot be read."""
    with _as_run_error(span.path):
        yield from read_span(span)


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """Return the number and path of each segment in a folder, in the order of round and number.

    Files with a single state have the number 0.
    """
    paths = list(folder.iterdir())
    found = [(int(m[1]), path) for path in paths if (m := _SEGMENT.fullmatch(path.name))]
    found += [(0, path) for path in paths if _SINGLE.fullmatch(path.name)]
    return sorted(found, key=lambda item: (_round_of(item[1]), *item))


def _round_of(path: Path) -> int:
    match = _SEGMENT.fullmatch(path.name) or _SINGLE.fullmatch(path.name)
    assert match is not None
    return int(match[2])


def stored_rounds(folder: Path) -> set[int]:
    """Return the rounds of the segments in a folder."""
    return {_round_of(path) for _, path in _segments(folder)}


def discard_leftovers(folder: Path, round: int, run: str) -> None:
    """Delete unfinished files, and segments of rounds after `round` or without a current state."""
    for _, path in _segments(folder):
        if _round_of(path) > round:
            path.unlink(missing_ok=True)
    _discard_parts(folder)
    ClientFiles(folder, round, run).delete_unused()


def keep_rounds(folder: Path, rounds: set[int]) -> None:
    """Delete all segments except the last one of each round in `rounds`."""
    last = {_round_of(path): path for _, path in _segments(folder)}
    for _, path in _segments(folder):
        if _round_of(path) not in rounds or path != last[_round_of(path)]:
            path.unlink(missing_ok=True)
    _discard_parts(folder)


def _discard_parts(folder: Path) -> None:
    for path in folder.iterdir():
        if path.suffix == ".part":
            path.unlink(missing_ok=True)
