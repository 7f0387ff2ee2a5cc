"""What this process imports, opens and connects to, as Python's audit events tell."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EVENTS = ("import", "open", "socket.connect", "socket.getaddrinfo")


class TrapOpenedError(Exception):
    """A file was opened that must not be: it might have blocked, or filled the memory."""


class Watch:
    """Notes what happens while it is on; an audit hook stays for the life of the process."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        self.trap: str | None = None
        self.kind = 0
        sys.addaudithook(self._hear)

    @contextmanager
    def watching(self, trap: object = None) -> Iterator[list[str]]:
        """Note what happens; opening the file `trap` is stopped before it is done.

        A command may put a file of its own in place of the trap, and may open that.
        """
        self.seen, self.trap = [], None if trap is None else str(trap)
        self.kind = 0 if self.trap is None else _kind(self.trap)
        self.on = True
        try:
            yield self.seen
        finally:
            self.on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or event not in EVENTS:
            return
        self.seen.append(f"{event} {arguments[:2]}")
        if event == "open" and self.trap is not None and not isinstance(arguments[0], int):
            path = os.fsdecode(arguments[0] or "")
            inside = path == self.trap or path.startswith(f"{self.trap}/")
            if inside and _kind(self.trap) == self.kind:
                raise TrapOpenedError(path)


def _kind(path: str) -> int:
    """The kind of file that stands at a path: link, pipe, folder, ...; 0 for none."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except FileNotFoundError:
        return 0


WATCH = Watch()
