"""The file flower.json, which a run on Flower has in its run folder in addition to the others.

identity     identity of the run in the folder
experiment   the name under which clients store their states of this run
starts       number of the server's last start; every start has a higher one
run          Flower's number of the last start
error        why the last start failed, or null
"""

import json
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedgh.errors import RunError, first_mistake, printable
from fedgh.files import read_bytes, write_atomic
from fedgh.runs.folder import RunFolder

MAX_SESSION = 2**16
"""Maximum size in bytes of flower.json: two names, two numbers and an error."""


@dataclass(frozen=True)
class Session:
    """The content of flower.json after a start of the server."""

    experiment: str
    starts: int
    run: int
    identity: str
    error: str | None = None

    @classmethod
    def begin(cls, folder: RunFolder, run: int, rounds_done: int) -> "Session":
        """Record and return the next start of the run in `folder`.

        Raise RunError if the run was started without Flower, or if flower.json is of another run.
        """
        path = folder.path
        last = cls.read(path)
        if last is None:
            if rounds_done:
                raise RunError(f"{path} was started without Flower; continue with `fedgh resume`")
            last = cls(f"{_safe(path.name)}-{secrets.token_hex(8)}", 0, run, folder.run_id)
        if last.identity != folder.run_id:
            raise RunError(f"{path / 'flower.json'} is of another run; put it back from a copy")
        # Clients refuse requests of an earlier start. A folder that was restored from a copy does
        # not know the starts after the copy; the clock does, in milliseconds.
        start = max(last.starts + 1, time.time_ns() // 10**6)
        session = replace(last, starts=start, run=run, error=None)
        session.write(path)
        return session

    @classmethod
    def read(cls, folder: Path) -> "Session | None":
        """Return the last start, or None if there was none; raise RunError if it is unreadable."""
        path = folder / "flower.json"
        if not path.exists():
            return None
        try:
            return TypeAdapter(cls).validate_json(read_bytes(path, MAX_SESSION))
        except OSError as error:
            raise RunError(f"{path} cannot be read ({printable(str(error))})") from None
        except ValidationError as error:
            raise RunError(f"{path} is damaged ({first_mistake(error)})") from None

    def write(self, folder: Path) -> None:
        """Write flower.json."""
        write_atomic(folder / "flower.json", json.dumps(asdict(self), indent=2).encode() + b"\n")


def _safe(name: str) -> str:
    """Return a name with letters, digits and hyphens only, of at most 40 characters."""
    safe = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
    return safe[:40].strip("-") or "run"
