"""The run folder: the contract that resuming, reports and tests rely on.

config.toml     resolved, enough to run again
data.json       which run: its identity; which data: name, size, classes, and a fingerprint of
                them and the settings
clients.json    who the clients are: network, classes, number of samples
rounds.jsonl    one line per round
asked.json      how often each client was asked for an upload, where that costs privacy each time
summary.json    what came out
means/          class means that the server received, of a few rounds
checkpoint/     the last completed round
report.html     all of it as a page
confusion.json  which classes the models take for which, measured for that page
export/         models for other programs, once `fedgh export` has written some
audit.json      what attackers learn from uploads, once `fedgh audit` has looked
tensorboard/    the same numbers for TensorBoard; wandb/ for W&B: with run.callbacks
"""

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgh.core.records import (
    FORMAT_VERSION,
    ClientInfo,
    Identity,
    RequestCounts,
    Round,
    Summary,
    check_format,
    checked,
)
from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.files import (
    check_no_link,
    discard_parts,
    explaining,
    is_part,
    locked,
    make_folder,
    read_bytes,
    write_atomic,
)
from fedgh.runs.checkpoint import ClientFiles, ServerFile, discard_leftovers
from fedgh.runs.history import History, Mark, to_json
from fedgh.runs.sealed import pack, unpack

LOCKED = (
    *("config.toml", "data.json", "clients.json", "rounds.jsonl", "summary.json"),
    *("asked.json", "flower.json"),
)
"""Files that only the process with the lock writes; a report or an audit takes no lock."""

MAX_JSON = 2**27
"""Bytes of a JSON file in a run folder: enough for the clients of a very large federation."""

MAX_PARTS = 2**22
"""Objects and lists in such a file: an empty one has two bytes there, and seventy in memory."""

MAX_MEANS = 2**30
"""Bytes of the class means of all rounds that were kept."""


class RunFolder:
    """One run on disk. Whatever moment a crash comes, the last committed round is intact.

    Who writes holds the lock of the folder, from before the first byte of a new run. Files that a
    resume relies on carry the identity of the run, which is drawn when it begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.checkpoint = path / "checkpoint"
        self._server = ServerFile(self.checkpoint)
        self._history = History(path / "rounds.jsonl")
        self._means = path / "means"

    @classmethod
    @contextmanager
    def create(
        cls, path: Path, config: str, identity: Identity, clients: list[ClientInfo], state: Payload
    ) -> Iterator["RunFolder"]:
        """Hold a new run, locked, before its first round; refuse a folder that holds something."""
        run = cls(path)
        with ExitStack() as stack:
            try:
                _check_unborn(path)  # before the lock, which would be a file among others' files
                make_folder(path)
                stack.enter_context(run._lock())
                _check_unborn(path)
                make_folder(run.checkpoint)
                name = secrets.token_hex(16)
                about_it = identity.model_copy(update={"run": name, "versions": versions()})
                write_atomic(path / "data.json", to_json(about_it.model_dump()))
                about = to_json([client.model_dump(exclude_unset=True) for client in clients])
                if len(about) > MAX_JSON:
                    raise RunError(f"{len(clients):,} clients are too many for one run folder")
                write_atomic(path / "clients.json", about)
                run._server.commit(Mark(0, run._history.digest()), state, name)
                write_atomic(run.config, config.encode())  # last: with it the run exists
            except OSError as error:
                raise RunError(
                    f"cannot write {error.filename}: {error.strerror}. The run has not begun: make "
                    "room, or allow it, and start it again"
                ) from None
            yield run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A run that is there."""
        run = cls(path)
        run.check_there()
        if not run.checkpoint.is_dir():
            raise RunError(
                f"{path} has no checkpoint/ to go on from; to start anew, choose another folder or "
                "delete this one"
            )
        return run

    def check_there(self) -> None:
        """Raise RunError unless a run was begun here, by a fedgh that writes this format."""
        if not self.config.is_file():
            raise RunError(f"{self.path} is not a run folder (it has no config.toml)")
        self.identity()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from writing into this run; released even by kill -9."""
        with ExitStack() as stack:
            with explaining():
                stack.enter_context(self._lock())
            yield

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock"))
            except BlockingIOError:
                raise RunError(f"{self.path} is in use by another process") from None
            for folder in (self.checkpoint, self._means):
                check_no_link(folder)
            yield

    def identity(self) -> Identity:
        """Which run it is, and which data it was started with."""
        found = self._read_json("data.json")
        check_format(found, self.path / "data.json")
        return checked(Identity, found, self.path / "data.json")

    @explaining()
    def update_versions(self) -> dict[str, str]:
        """Write the installed package versions to data.json; return those of the last start."""
        known = self.identity()
        now = known.model_copy(update={"versions": versions(), "format_version": FORMAT_VERSION})
        if now != known:
            write_atomic(self.path / "data.json", to_json(now.model_dump()))
        return known.versions

    @cached_property
    def run_id(self) -> str:
        """The identity of the run, which every state and count of it carries."""
        return self.identity().run

    def clients(self) -> list[ClientInfo]:
        """Return the clients: network, classes and number of samples of each."""
        found = self._read_json("clients.json")
        return checked(list[ClientInfo], found, self.path / "clients.json")

    def records(self) -> list[Round]:
        """Return the rounds so far; committed ones are verified by their digest."""
        mark = self._server.mark(self.run_id) if self._server.path.exists() else Mark(0, None)
        return self._history.records(mark)  # the mark came first: lines are only added

    @explaining()
    def count_asked(self, clients: Iterable[int]) -> None:
        """Count that these are about to be asked: what they answer may cost privacy."""
        asked = Counter(self.asked())
        asked.update(clients)
        content = RequestCounts(run=self.run_id, asked=dict(asked))
        write_atomic(self.path / "asked.json", content.model_dump_json().encode() + b"\n")

    def asked(self) -> dict[int, int]:
        """How often each client was asked, also in rounds that were then lost, where counted."""
        if not (self.path / "asked.json").exists():
            return {}
        known = checked(RequestCounts, self._read_json("asked.json"), self.path / "asked.json")
        if known.run != self.run_id:
            raise RunError(f"{self.path / 'asked.json'} is of another run")
        return known.asked

    @explaining()
    def append(self, record: Round) -> None:
        """Add a round. It counts once it is committed."""
        self._history.append(record)

    @explaining()
    def commit(self, round: int, state: Payload) -> None:
        """Make `round`, the last that was added, the one to resume from."""
        self._server.commit(Mark(round, self._history.digest()), state, self.run_id)

    def committed(self) -> tuple[int, Payload]:
        """The last committed round, and the state that it left."""
        mark, state = self._server.load(self.run_id)
        self._history.records(mark)
        return mark.round, state

    @explaining()
    def rewind(self) -> tuple[int, Payload]:
        """Forget what came after the last committed round; return that round and its state."""
        round, state = self.committed()
        discard_leftovers(self.checkpoint, round)
        discard_parts(self.path, LOCKED)
        self._history.cut(round)
        for later, file in self._mean_files().items():
            if later > round:
                file.unlink()
        if self._means.is_dir():
            discard_parts(self._means)
        return round, state

    def client_files(self, round: int) -> ClientFiles:
        """The states of the clients after `round`."""
        return ClientFiles(self.checkpoint, round, self.run_id)

    @explaining()
    def discard_leftovers(self) -> None:
        """Delete client states that the last commit does not need."""
        discard_leftovers(self.checkpoint, self.committed()[0])

    @explaining()
    def keep_means(self, round: int, means: Payload) -> None:
        """Keep the class means of a round."""
        make_folder(self._means)
        content = pack(means, round=round, run=self.run_id)
        write_atomic(self._means / f"{round:06}.safetensors", content)

    def means(self) -> dict[int, Payload]:
        """The class means that were kept, by round."""
        files = self._mean_files()
        if sum(file.lstat().st_size for file in files.values()) > MAX_MEANS:
            raise RunError(f"{self._means} has more than {MAX_MEANS:,} bytes; they are not read")
        return {round: _read_means(round, file, self.run_id) for round, file in files.items()}

    def _mean_files(self) -> dict[int, Path]:
        if self._means.is_symlink():
            raise RunError(f"{self._means} is a symbolic link; nothing is read behind it")
        files = sorted(self._means.glob("*.safetensors"))
        return {int(file.stem): file for file in files if file.stem.isdecimal()}

    @explaining()
    def write_summary(self, summary: Summary) -> None:
        """Write the result: with it the run is finished."""
        content = json.dumps(summary.model_dump(exclude_unset=True), indent=2).encode() + b"\n"
        write_atomic(self.path / "summary.json", content)

    @property
    def finished(self) -> bool:
        """Whether the run is finished: its folder has a summary.json."""
        return (self.path / "summary.json").exists()

    def summary(self) -> Summary:
        """Return the result of a finished run."""
        if not self.finished:
            raise RunError(f"{self.path} has not finished; go on with it: fedgh resume {self.path}")
        return checked(Summary, self._read_json("summary.json"), self.path / "summary.json")

    def _read_json(self, name: str) -> Any:
        try:
            return _parse_json(read_bytes(self.path / name, MAX_JSON))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.path / name} cannot be read ({error}); put it back from a copy"
            ) from None


def versions() -> dict[str, str]:
    """Return the versions on which the bits of a run depend."""
    return {package: version(package) for package in ("fedgh", "torch", "numpy")}


def _parse_json(content: bytes) -> Any:
    if content.count(b"{") + content.count(b"[") > MAX_PARTS:
        raise ValueError(f"it has more than {MAX_PARTS:,} parts")
    return json.loads(content)


def _check_unborn(path: Path) -> None:
    """Refuse a folder that holds anything but what `create` writes before the configuration."""
    first = (".lock", "checkpoint", "clients.json", "data.json")
    if path.exists() and not (
        path.is_dir() and all(item.name in first or is_part(item.name) for item in path.iterdir())
    ):
        raise RunError(
            f"{path} exists and is not empty; choose another --out, "
            f"or go on with it: fedgh resume {path}"
        )


def _read_means(round: int, file: Path, run: str) -> Payload:
    try:
        about, means = unpack(read_bytes(file, MAX_MEANS))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({error})") from None
    if about != {"round": round, "run": run}:
        raise RunError(f"{file} holds the means of another round or run")
    return means
