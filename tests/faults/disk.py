"""Record the changes of a folder by this process, and inject faults.

Every call by which Python changes the folder is one operation. Buffered writes count when the
operating system receives them.
"""

import builtins
import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKS_ON_FULL_DISK = {"unlink", "rmdir", "fsync"}
"""Kinds of operations that succeed on a full disk."""


@dataclass(frozen=True)
class Operation:
    """One change of the folder; paths are relative to it."""

    kind: str  # open, write, truncate, fsync, rename, unlink, mkdir, rmdir
    path: str
    other: str = ""  # open: the mode; rename: the new name
    data: str = ""  # write: the bytes, as latin-1


@dataclass(frozen=True)
class Fault:
    """A fault, and the number of the operation at which it happens."""

    at: int
    how: str  # kill, half (kill after half of a write), full or forbidden (from `at` on)
    error: int = 0

    def strike(self, number: int, operation: Operation, folder: str) -> None:
        """Cause the fault if it is due at this operation."""
        if self.how in ("kill", "half"):
            if number == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        elif number >= self.at and not (
            self.how == "full" and operation.kind in WORKS_ON_FULL_DISK
        ):
            named = operation.kind not in (
                "write",
                "fsync",
            )  # the operating system names the file, too
            name = (f"{folder}/{operation.path}",) if named else ()
            raise OSError(self.error, os.strerror(self.error), *name)


class Disk:
    """Records and disturbs all changes of a folder, until this process ends."""

    def __init__(self, folder: Path, fault: Fault | None = None) -> None:
        self.folder = str(folder)
        self.fault = fault
        self.operations: list[Operation] = []
        self._files: dict[int, str] = {}

    def install(self) -> None:
        """Replace the functions of Python that change files."""
        real_open, real_os_open = builtins.open, os.open

        def watched_open(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if not (set(mode) & set("wax+") and self._inside(file)):
                return real_open(file, mode, *rest, **options)
            raw = _File(self, os.fspath(file), mode.replace("b", "").replace("t", ""))
            binary = io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8")

        def watched_os_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            assert not (flags & (os.O_WRONLY | os.O_RDWR) and self._inside(path)), (
                "a write through os.open is not recorded"
            )
            number = real_os_open(path, flags, *rest, **options)
            self._files[number] = str(path)
            return number

        builtins.open = io.open = watched_open
        os.open = watched_os_open
        os.fsync = self._of_file("fsync", os.fsync)  # type: ignore[assignment]
        for name, kind in (("replace", "rename"), ("rename", "rename")):
            setattr(os, name, self._of_path(kind, getattr(os, name)))
        for name in ("unlink", "mkdir", "rmdir", "truncate", "link", "symlink"):
            setattr(os, name, self._of_path(name, getattr(os, name)))
        os.remove = os.unlink

    def _of_path(self, kind: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *rest: Any, **options: Any) -> Any:
            if self._inside(path):
                other = self.relative(rest[0]) if kind == "rename" else ""
                self.before(Operation(kind, self.relative(path), other))
            return do(path, *rest, **options)

        return watched

    def _of_file(self, kind: str, do: Callable[[Any], None]) -> Callable[[Any], None]:
        def watched(number: Any) -> None:
            path = self._files.get(number, "")
            if self._inside(path):
                self.before(Operation(kind, self.relative(path)))
            do(number)

        return watched

    def before(self, operation: Operation) -> None:
        """Record an operation that is about to happen; cause the fault if it is due."""
        self.operations.append(operation)
        if self.fault is not None:
            self.fault.strike(len(self.operations), operation, self.folder)

    def opened(self, number: int, path: str) -> None:
        """Record the path of a file descriptor."""
        self._files[number] = path

    @property
    def half(self) -> bool:
        """True if only half of the next write is to be written."""
        fault, number = self.fault, len(self.operations) + 1
        return fault is not None and fault.how in ("half", "full") and number == fault.at

    def relative(self, path: Any) -> str:
        """Return a path relative to the folder."""
        return os.path.relpath(path, self.folder)

    def _inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        return f"{os.fspath(path)}/".startswith(f"{self.folder}/")


class _File(io.FileIO):
    """An unbuffered file whose operations are recorded."""

    def __init__(self, disk: Disk, path: str, mode: str) -> None:
        disk.before(Operation("open", disk.relative(path), mode))
        super().__init__(path, mode)
        self._disk, self._path = disk, path
        disk.opened(self.fileno(), path)

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        if self._disk.half:
            super().write(content[: len(content) // 2])
        path = self._disk.relative(self._path)
        self._disk.before(Operation("write", path, data=content.decode("latin-1")))
        return super().write(content)

    def truncate(self, size: int | None = None, /) -> int:
        self._disk.before(Operation("truncate", self._disk.relative(self._path)))
        return super().truncate(size)
