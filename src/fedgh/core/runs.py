"""The run folder: the contract that resuming, reports and tests rely on.

config.toml     resolved, enough to run again
data.json       which data: name, size, classes, and a fingerprint of them and the settings
clients.json    who the clients are: network, classes, number of samples
rounds.jsonl    one line per round
asked.json      how often each client was asked for an upload, where that costs privacy each time
summary.json    what came out
means/          class means that the server received, of a few rounds
checkpoint/     the last completed round
report.html     all of it as a page
confusion.json  which classes the models take for which, measured for that page
export/         models for other programs, once `fedgh export` has written some
audit.json      what attackers learn from class means, once `fedgh audit` has looked
tensorboard/    the same numbers for TensorBoard, with run.tensorboard
"""

import fcntl
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from fedgh.core.checkpoint import ServerFile, discard_leftovers
from fedgh.core.disk import discard_parts, explaining, make_folder, write_atomic
from fedgh.core.history import History, Mark, to_json
from fedgh.core.history import Record as Record
from fedgh.core.sealed import pack, unpack
from fedgh.core.types import Payload
from fedgh.errors import RunError


class RunFolder:
    """One run on disk. Whatever moment a crash comes, the last committed round is intact."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.checkpoint = path / "checkpoint"
        self._server = ServerFile(self.checkpoint)
        self._history = History(path / "rounds.jsonl")
        self._means = path / "means"

    @classmethod
    def create(
        cls, path: Path, config: str, identity: Record, clients: list[Record], state: Payload
    ) -> "RunFolder":
        """A new run before its first round; refuses a folder that holds something already."""
        if path.exists() and not _unborn(path):
            raise RunError(
                f"{path} exists and is not empty; choose another --out, "
                f"or go on with it: fedgh resume {path}"
            )
        run = cls(path)
        try:
            make_folder(run.checkpoint)
            write_atomic(path / "data.json", to_json(identity))
            write_atomic(path / "clients.json", to_json(clients))
            run._server.commit(Mark(0, run._history.digest()), state)
            write_atomic(run.config, config.encode())  # last: with it the run exists
        except OSError as error:
            raise RunError(
                f"cannot write {error.filename}: {error.strerror}. The run has not begun: make "
                "room, or allow it, and start it again"
            ) from None
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A run that is there."""
        run = cls(path)
        if not run.config.is_file():
            raise RunError(f"{path} is not a run folder (it has no config.toml)")
        if not run.checkpoint.is_dir():
            raise RunError(
                f"{path} has no checkpoint/ to go on from; to start anew, choose another folder or "
                "delete this one"
            )
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from writing into this run; released even by kill -9."""
        with explaining():
            file = (self.path / ".lock").open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"{self.path} is in use by another process") from None
            yield

    def identity(self) -> Record:
        """Which data the run was started with: name, size, fingerprint."""
        found = self._read_json("data.json")
        known: Record = found if isinstance(found, dict) else {}
        for key, kind in (("name", str), ("classes", list), ("fingerprint", str)):
            if not isinstance(known.get(key), kind):
                raise RunError(f"{self.path / 'data.json'} is not what a run writes: {key}")
        return known

    def clients(self) -> list[Record]:
        """Who the clients are."""
        found: list[Record] = self._read_json("clients.json")
        return found

    def records(self) -> list[Record]:
        """The rounds so far; those that are committed are as they were when they were."""
        return self._history.records(self._server.mark())  # the mark first: lines only come

    @explaining()
    def count_asked(self, clients: Iterable[int]) -> None:
        """Count that these are about to be asked: what they answer may cost privacy."""
        asked = Counter(self.asked())
        asked.update(clients)
        write_atomic(
            self.path / "asked.json",
            to_json({str(client): times for client, times in asked.items()}),
        )

    def asked(self) -> dict[int, int]:
        """How often each client was asked, also in rounds that were then lost, where counted."""
        if not (self.path / "asked.json").exists():
            return {}
        try:
            return TypeAdapter(dict[int, NonNegativeInt]).validate_python(
                self._read_json("asked.json")
            )
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise RunError(
                f"{self.path / 'asked.json'} is not what a run writes: {where}"
            ) from None

    @explaining()
    def append(self, record: Record) -> None:
        """Add a round. It counts once it is committed."""
        self._history.append(record)

    @explaining()
    def commit(self, round: int, state: Payload) -> None:
        """Make `round`, the last that was added, the one to resume from."""
        self._server.commit(Mark(round, self._history.digest()), state)

    def committed(self) -> tuple[int, Payload]:
        """The last committed round, and the state that it left."""
        mark, state = self._server.load()
        self._history.records(mark)
        return mark.round, state

    @explaining()
    def rewind(self) -> tuple[int, Payload]:
        """Forget what came after the last committed round; return that round and its state."""
        round, state = self.committed()
        discard_leftovers(self.checkpoint, round)
        discard_parts(self.path)
        self._history.cut(round)
        for later, file in self._mean_files().items():
            if later > round:
                file.unlink()
        if self._means.is_dir():
            discard_parts(self._means)
        return round, state

    @explaining()
    def discard_leftovers(self) -> None:
        """Delete client states that the last commit does not need."""
        discard_leftovers(self.checkpoint, self.committed()[0])

    @explaining()
    def keep_means(self, round: int, means: Payload) -> None:
        """Keep the class means of a round."""
        make_folder(self._means)
        write_atomic(self._means / f"{round:06}.safetensors", pack(means, round=round))

    def means(self) -> dict[int, Payload]:
        """The class means that were kept, by round."""
        return {round: _read_means(round, file) for round, file in self._mean_files().items()}

    def _mean_files(self) -> dict[int, Path]:
        files = sorted(self._means.glob("*.safetensors"))
        return {int(file.stem): file for file in files if file.stem.isdecimal()}

    @explaining()
    def write_summary(self, summary: Record) -> None:
        """What came out."""
        write_atomic(self.path / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")

    def summary(self) -> Record | None:
        """What came out; None while the run is not finished."""
        if not (self.path / "summary.json").exists():
            return None
        found: Record = self._read_json("summary.json")
        return found

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.path / name} cannot be read ({error}); put it back from a copy"
            ) from None


def _unborn(path: Path) -> bool:
    """Whether a folder is empty but for what `create` writes before the configuration."""
    return path.is_dir() and all(
        item.name in ("checkpoint", "clients.json", "data.json") or item.suffix == ".part"
        for item in path.iterdir()
    )


def _read_means(round: int, file: Path) -> Payload:
    try:
        about, means = unpack(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({error})") from None
    if about and about != {"round": round}:
        raise RunError(f"{file} holds the means of another round")
    return means
