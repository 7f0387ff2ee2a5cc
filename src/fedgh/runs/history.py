"""rounds.jsonl: one line per round, and a digest by which a commit verifies the lines."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from fedgh.core.records import Round, checked
from fedgh.errors import RunError
from fedgh.files import append, open_regular, write_atomic

MAX_LINE = 2**26
"""Maximum size of a record in bytes: enough for a few numbers of each of a million clients."""


@dataclass(frozen=True)
class Mark:
    """The last committed round of a run, and the digest of the records up to it."""

    round: int
    digest: str | None  # of the lines up to this round; None without a checkpoint


class History:
    """The file with the records of a run, to which records are appended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest: blake2b | None = None  # digest of the whole file, once computed

    def records(self, mark: Mark) -> list[Round]:
        """Return the records; a line truncated by a crash is ignored, with all that follow.

        Raise RunError if a committed line is missing or has changed.
        """
        lines = self._lines()
        if len(lines) < mark.round:
            raise RunError(
                f"{self._path} lacks records of rounds 1 to {mark.round}, which were committed; it "
                "was changed by hand or damaged: put it back from a copy"
            )
        if mark.digest not in (None, _hash(lines[: mark.round]).hexdigest()):
            raise RunError(
                f"{self._path} has other records of rounds 1 to {mark.round} than were committed; "
                "it was changed by hand or damaged: put it back from a copy"
            )
        return checked(list[Round], [json.loads(line) for line in lines], self._path)

    def append(self, record: Round) -> None:
        """Append the record of a round."""
        line = to_json(record.model_dump(exclude_unset=True))
        append(self._path, line)
        if self._digest is not None:
            self._digest.update(line)

    def cut(self, rounds: int) -> None:
        """Delete the records after round `rounds`."""
        write_atomic(self._path, b"".join(self._lines()[:rounds]))
        self._digest = None

    def digest(self) -> str:
        """Return the digest of all lines."""
        if self._digest is None:
            self._digest = _hash(self._lines())
        return self._digest.hexdigest()

    def _lines(self) -> list[bytes]:
        """Return the lines with the records of rounds 1, 2, ...; stop at the first other line."""
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
                f"{self._path} cannot be read ({error.strerror}); check its permissions, or put "
                "it back from a copy"
            ) from None
        return lines


def to_json(value: object) -> bytes:
    """Return a value as one line of JSON."""
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _hash(lines: Iterable[bytes]) -> blake2b:
    return blake2b(b"".join(lines), digest_size=16)
