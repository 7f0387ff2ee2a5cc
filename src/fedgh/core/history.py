"""rounds.jsonl: a line per round, and the digest by which a commit knows them again."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedgh.core.disk import naming, write_atomic
from fedgh.errors import RunError

Record = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """How far a run had come when it was committed."""

    round: int
    digest: str | None  # of the lines so far; checkpoints from before there were digests have none


class History:
    """The records of a run's rounds, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._running: blake2b | None = None  # over the whole file, once it was asked for

    def records(self, mark: Mark) -> list[Record]:
        """The complete lines; one that a crash cut short is ignored, with all that follows.

        Those that were committed have to be there as they were.
        """
        lines = self._lines()
        if len(lines) < mark.round:
            raise RunError(
                f"{self._path} does not hold rounds 1 to {mark.round} of the checkpoint; it was "
                "changed by hand or damaged: put it back from a copy"
            )
        if mark.digest not in (None, _hash(lines[: mark.round]).hexdigest()):
            raise RunError(
                f"{self._path} is not what rounds 1 to {mark.round} have written; it was changed "
                "by hand or damaged: put it back from a copy"
            )
        return [json.loads(line) for line in lines]

    def append(self, record: Record) -> None:
        """Add a round."""
        line = to_json(record)
        with naming(self._path), self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if self._running is not None:
            self._running.update(line)

    def cut(self, rounds: int) -> None:
        """Forget what came after these rounds."""
        write_atomic(self._path, b"".join(self._lines()[:rounds]))
        self._running = None

    def digest(self) -> str:
        """Of all lines."""
        if self._running is None:
            self._running = _hash(self._lines())
        return self._running.hexdigest()

    def _lines(self) -> list[bytes]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self._path} cannot be read ({error.strerror}); allow it") from None
        lines: list[bytes] = []
        for line in content.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(record, dict) or record.get("round") != len(lines) + 1:
                break
            lines.append(line + b"\n")
        return lines


def to_json(value: Record | list[Record]) -> bytes:
    """One line of JSON."""
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _hash(lines: Iterable[bytes]) -> blake2b:
    return blake2b(b"".join(lines), digest_size=16)
