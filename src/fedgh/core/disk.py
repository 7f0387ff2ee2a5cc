"""Writing so that a crash or a power cut leaves the old file or the new one, never half.

What goes wrong says which file it is about, and what to do.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedgh.errors import RunError

_PART = re.compile(r".+\.\d+\.part")


def write_atomic(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file in one step that survives a crash or a power cut."""
    replace(path, content, mode)
    sync_folder(path.parent)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it is in, to survive a power cut; it may be there already."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    with naming(path):
        path.mkdir(mode, parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def replace(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file in one step; it lasts once its folder is synced."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with naming(path):
        try:
            with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)  # on a full disk it is in the way
            raise


def discard_parts(folder: Path) -> None:
    """Delete what a process that was killed has written in part."""
    for path in folder.iterdir():
        if _PART.fullmatch(path.name):
            path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    with naming(path):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an error of the operating system say which file it is about: a full disk does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


@contextmanager
def explaining() -> Iterator[None]:
    """Say what to do when a file of a run cannot be written."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error) from None


def cannot_write(error: OSError) -> RunError:
    """What to tell a user when a file of a run cannot be written."""
    return RunError(
        f"cannot write {error.filename}: {error.strerror}. The last completed round is safe: make "
        "room, or allow it, and go on with `fedgh resume`"
    )
