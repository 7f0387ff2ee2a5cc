"""rounds.jsonl: a line per round, and the digest by which a commit knows them again."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from fedgh.core.records import Round, checked
from fedgh.errors import RunError
from fedgh.files import append, open_regular, write_atomic

MAX_LINE = 2**26
"""Bytes of one round's record: enough for a few numbers of each of a million clients."""


@dataclass(frozen=True)
class Mark:
    """How far a run had come when it was committed."""

    round: int
    digest: str | None  # of the lines so far; None when there is no checkpoint


class History:
    """The records of a run's rounds, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._running: blake2b | None = None  # over the whole file, once it was asked for

    def records(self, mark: Mark) -> list[Round]:
        """Return the complete lines; one that a crash cut short is ignored, with all that follows.

        Raises RunError unless the committed ones are there as they were.
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
        return checked(list[Round], [json.loads(line) for line in lines], self._path)

    def append(self, record: Round) -> None:
        """Add a round."""
        line = to_json(record.model_dump(exclude_unset=True))
        append(self._path, line)
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
        """The lines that are records of rounds 1, 2 and so on, up to the first that is not."""
        lines: list[bytes] = []
        try:
            with open_regular(self._path) as file:
                while len(line := file.readline(MAX_LINE)) < MAX_LINE:
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError):
                        break
                    if not isinstance(record, dict) or record.get("round") != len(lines) + 1:
                        break
                    lines.append(line.rstrip(b"\r\n") + b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(
                f"{self._path} cannot be read ({error.strerror}); allow it, or put it back from "
                "a copy"
            ) from None
        return lines


def to_json(value: object) -> bytes:
    """One line of JSON."""
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _hash(lines: Iterable[bytes]) -> blake2b:
    return blake2b(b"".join(lines), digest_size=16)
