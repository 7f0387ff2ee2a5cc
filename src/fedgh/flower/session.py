"""What a run on Flower keeps in its folder beside what every run keeps: flower.json.

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

from fedgh.core.disk import write_atomic
from fedgh.errors import RunError, printable


@dataclass(frozen=True)
class Session:
    """One start of the server."""

    experiment: str
    starts: int
    run: int
    error: str | None = None

    @classmethod
    def begin(cls, folder: Path, run: int, rounds_done: int) -> "Session":
        """The next start of the run in `folder`."""
        before = cls.read(folder)
        if before is None:
            if rounds_done:
                raise RunError(f"{folder} was begun without Flower; go on with `fedgh resume`")
            before = cls(f"{_safe(folder.name)}-{secrets.token_hex(4)}", 0, run)
        session = replace(before, starts=before.starts + 1, run=run, error=None)
        session.write(folder)
        return session

    @classmethod
    def read(cls, folder: Path) -> "Session | None":
        """The last start; None when there was none."""
        path = folder / "flower.json"
        if not path.exists():
            return None
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise RunError(f"{path} cannot be read ({printable(str(error))})") from None

    def write(self, folder: Path) -> None:
        """Make it last."""
        write_atomic(folder / "flower.json", json.dumps(asdict(self), indent=2).encode() + b"\n")


def _safe(name: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
    return kept[:40].strip("-") or "run"
