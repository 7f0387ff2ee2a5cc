"""The run folder: the contract that resuming, reports and tests rely on.

config.toml     resolved, enough to run again
data.json       which data: name, size, classes, and a fingerprint of them and the settings
clients.json    who the clients are: network, classes, number of samples
rounds.jsonl    one line per round
summary.json    what came out
means/          class means that the server received, of a few rounds
checkpoint/     the last completed round
report.html     all of it as a page
confusion.json  which classes the models take for which, measured for that page
tensorboard/    the same numbers for TensorBoard, with run.tensorboard
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgh.core import wire
from fedgh.core.checkpoint import ServerFile, discard_leftovers, write_atomic
from fedgh.core.types import Payload
from fedgh.errors import RunError

Record = dict[str, Any]


class RunFolder:
    """One run on disk. Whatever moment a crash comes, the last committed round is intact."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.checkpoint = path / "checkpoint"
        self._server = ServerFile(self.checkpoint)
        self._rounds = path / "rounds.jsonl"
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
        run.checkpoint.mkdir(parents=True, exist_ok=True)
        write_atomic(path / "data.json", _to_json(identity))
        write_atomic(path / "clients.json", _to_json(clients))
        run.commit(0, state)
        write_atomic(run.config, config.encode())  # last: with it the run exists
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
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"{self.path} is in use by another process") from None
            yield

    def identity(self) -> Record:
        """Which data the run was started with: name, size, fingerprint."""
        found: Record = self._read_json("data.json")
        return found

    def clients(self) -> list[Record]:
        """Who the clients are."""
        found: list[Record] = self._read_json("clients.json")
        return found

    def records(self) -> list[Record]:
        """The complete lines of rounds.jsonl; one that a crash cut short is ignored."""
        if not self._rounds.exists():
            return []
        records: list[Record] = []
        for line in self._rounds.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(record, dict) or record.get("round") != len(records) + 1:
                break
            records.append(record)
        return records

    def append(self, record: Record) -> None:
        """Add a round. It counts once it is committed."""
        with self._rounds.open("ab") as file:
            file.write(_to_json(record))
            file.flush()
            os.fsync(file.fileno())

    def commit(self, round: int, state: Payload) -> None:
        """Make `round` the one to resume from."""
        self._server.commit(round, state)

    def committed(self) -> tuple[int, Payload]:
        """The last committed round, and the state that it left."""
        return self._server.load()

    def rewind(self) -> tuple[int, Payload]:
        """Forget what came after the last committed round; return that round and its state."""
        round, state = self.committed()
        kept = self.records()[:round]
        if len(kept) < round:
            raise RunError(
                f"{self._rounds} does not hold rounds 1 to {round} of the checkpoint; "
                "it was changed by hand or damaged"
            )
        discard_leftovers(self.checkpoint, round)
        write_atomic(self._rounds, b"".join(map(_to_json, kept)))
        for later, file in self._mean_files().items():
            if later > round:
                file.unlink()
        return round, state

    def discard_leftovers(self) -> None:
        """Delete client states that the last commit does not need."""
        discard_leftovers(self.checkpoint, self.committed()[0])

    def keep_means(self, round: int, means: Payload) -> None:
        """Keep the class means of a round."""
        self._means.mkdir(exist_ok=True)
        write_atomic(self._means / f"{round:06}.safetensors", wire.to_bytes(means))

    def means(self) -> dict[int, Payload]:
        """The class means that were kept, by round."""
        return {
            round: wire.from_bytes(file.read_bytes()) for round, file in self._mean_files().items()
        }

    def _mean_files(self) -> dict[int, Path]:
        files = sorted(self._means.glob("*.safetensors"))
        return {int(file.stem): file for file in files if file.stem.isdecimal()}

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
            raise RunError(f"{self.path / name} cannot be read ({error})") from None


def _unborn(path: Path) -> bool:
    """Whether a folder is empty but for what `create` writes before the configuration."""
    return path.is_dir() and all(
        item.name in ("checkpoint", "clients.json", "data.json") or item.suffix == ".part"
        for item in path.iterdir()
    )


def _to_json(value: Record | list[Record]) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"
