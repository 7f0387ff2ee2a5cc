"""Open, replace and lock files: the only module that does.

Reads take regular files only, up to a size that the caller states. Writes go to a new file with a
random name, which then takes the place of the old one: a crash or a power cut leaves the old file
or the new one, and a link is replaced, never followed. Errors say which file they are about.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fedgh.errors import RunError

_PART = re.compile(r"(.+)\.[0-9a-f]{16}\.part")


def read_bytes(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; OSError says why not."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return file.read(size)  # what is added meanwhile is for the next reader


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    `follow` allows a symbolic link: for paths that the user names, not for those in a folder that
    may come from elsewhere.
    """
    _check_regular(path, path.stat(follow_symlinks=follow))  # before: opening acts on devices
    with ExitStack() as stack:
        extra = 0 if follow else os.O_NOFOLLOW
        file = stack.enter_context(open(path, "rb", opener=_opener(extra)))
        _check_regular(path, os.fstat(file.fileno()))
        stack.pop_all()
    return file


def write_atomic(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file in one step that survives a crash or a power cut."""
    replace(path, content, mode)
    sync_folder(path.parent)


def replace(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file in one step; it lasts once its folder is synced."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    with naming(path):
        try:
            with open(part, "xb", opener=_opener(os.O_NOFOLLOW, mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)  # on a full disk it is in the way
            raise


def append(path: Path, content: bytes) -> None:
    """Add bytes to the end of a file, and wait until they are on the disk."""
    with naming(path), open_append(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def open_append(path: Path) -> BinaryIO:
    """Open a regular file, made if need be, to write at its end."""
    with suppress(FileNotFoundError):
        _check_regular(path, path.lstat())
    return open(path, "ab", opener=_opener(os.O_NOFOLLOW))


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock that a file stands for; released even by kill -9.

    Raises BlockingIOError when another process holds it, unless `wait` is set.
    """
    with naming(path):
        file = open_append(path)
    with file:
        with naming(path):
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it is in, to survive a power cut; it may be there already."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    with naming(path):
        path.mkdir(mode, parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def check_no_link(path: Path) -> None:
    """Raise OSError when a path is a symbolic link: what it holds would be elsewhere."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))


def is_part(name: str) -> bool:
    """Tell whether a file of this name was being written when its process ended."""
    return _PART.fullmatch(name) is not None


def discard_parts(folder: Path, of: Collection[str] | None = None) -> None:
    """Delete what a killed process has written in part: of these files, or of any."""
    for path in folder.iterdir():
        part = _PART.fullmatch(path.name)
        if part and (of is None or part[1] in of):
            path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    with naming(path):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _opener(extra: int, mode: int = 0o666) -> Callable[[str, int], int]:
    """Open as Python would, with more flags; never wait for the other end of a pipe."""
    return lambda path, flags: os.open(path, flags | extra | os.O_NONBLOCK, mode)


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
    """Return what to tell a user when a file of a run cannot be written."""
    return RunError(
        f"cannot write {error.filename}: {error.strerror}. The last completed round is safe: make "
        "room, or allow it, and go on with `fedgh resume`"
    )
