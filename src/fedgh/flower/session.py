"""What a run on Flower keeps in its folder beside what every run keeps: flower.json.

identity     of the run in the folder
experiment   the name under which participants keep their states of this run
starts       how often a server has begun to work on it
run          Flower's number of the last start
error        why the last start has ended, if not well
"""

import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedgh.errors import RunError, printable
from fedgh.files import read_bytes, write_atomic
from fedgh.runs.folder import RunFolder

MAX_SESSION = 2**16
"""Bytes of flower.json: two names, two numbers and an error."""


@dataclass(frozen=True)
class Session:
    """One start of the server."""

    experiment: str
    starts: int
    run: int
    identity: str
    error: str | None = None

    @classmethod
    def begin(cls, folder: RunFolder, run: int, rounds_done: int) -> "Session":
        """The next start of the run in `folder`."""
        path = folder.path
        before = cls.read(path)
        if before is None:
            if rounds_done:
                raise RunError(f"{path} was begun without Flower; go on with `fedgh resume`")
            before = cls(f"{_safe(path.name)}-{secrets.token_hex(8)}", 0, run, folder.run_id)
        if before.identity != folder.run_id:
            raise RunError(f"{path / 'flower.json'} is of another run; put it back from a copy")
        session = replace(before, starts=before.starts + 1, run=run, error=None)
        session.write(path)
        return session

    @classmethod
    def read(cls, folder: Path) -> "Session | None":
        """The last start; None when there was none."""
        path = folder / "flower.json"
        if not path.exists():
            return None
        try:
            return TypeAdapter(cls).validate_json(read_bytes(path, MAX_SESSION))
        except (OSError, ValidationError) as error:
            raise RunError(f"{path} cannot be read ({printable(str(error))})") from None

    def write(self, folder: Path) -> None:
        """Make it last."""
        write_atomic(folder / "flower.json", json.dumps(asdict(self), indent=2).encode() + b"\n")


def _safe(name: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
    return kept[:40].strip("-") or "run"
