"""Record what this process imports, opens and connects to, through Python's audit events."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EVENTS = ("import", "open", "socket.connect", "socket.getaddrinfo")


class TrapOpenedError(Exception):
    """A file was opened that must not be: it could block, or fill the memory."""


class AuditRecorder:
    """Records audit events while it is active; its hook stays until the process ends."""

    def __init__(self) -> None:
        self.active = False
        self.events: list[str] = []
        self.trap: str | None = None
        self.kind = 0
        sys.addaudithook(self._record)

    @contextmanager
    def recording(self, trap: object = None) -> Iterator[list[str]]:
        """Record events in the block; raise TrapOpenedError before the file `trap` is opened.

        A command may replace the trap by a file of its own, and may open that file.
        """
        self.events, self.trap = [], None if trap is None else str(trap)
        self.kind = 0 if self.trap is None else _kind(self.trap)
        self.active = True
        try:
            yield self.events
        finally:
            self.active = False

    def _record(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active or event not in EVENTS:
            return
        self.events.append(f"{event} {arguments[:2]}")
        if event == "open" and self.trap is not None and not isinstance(arguments[0], int):
            path = os.fsdecode(arguments[0] or "")
            inside = path == self.trap or path.startswith(f"{self.trap}/")
            if inside and _kind(self.trap) == self.kind:
                raise TrapOpenedError(path)


def _kind(path: str) -> int:
    """Return the kind of file at a path (link, pipe, folder, ...), or 0 if there is none."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except FileNotFoundError:
        return 0


RECORDER = AuditRecorder()
