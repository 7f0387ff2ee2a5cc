"""Open, replace and lock files: the only module that does.

Only regular files are read, up to a size that the caller gives. A file is written under a random
name and then renamed: after a crash or a power cut, either the old or the new content is there, and
a symbolic link is replaced, never followed. Every OSError names its file.
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
"""Names of files that are being written: the final name, a random number, `.part`."""


def read_bytes(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """Return the content of a regular file; raise OSError if it has more than `limit` bytes."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return file.read(size)  # without bytes that are appended during the read


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading; raise OSError for any other kind of file.

    `follow` allows a symbolic link. Set it for paths that the user names, not for paths in a folder
    that may come from a remote party.
    """
    # Checked before opening as well: opening a device file can already have an effect.
    _check_regular(path, path.stat(follow_symlinks=follow))
    with ExitStack() as stack:
        flags = 0 if follow else os.O_NOFOLLOW
        file = stack.enter_context(open(path, "rb", opener=_opener(flags)))
        _check_regular(path, os.fstat(file.fileno()))
        stack.pop_all()
    return file


def write_atomic(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file in one step; when this returns, the new content survives a power cut."""
    replace(path, content, mode)
    sync_folder(path.parent)


def replace(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file in one step; the change survives a power cut only after `sync_folder`."""
    file = PartFile(path.parent, mode, path.name)
    try:
        file.write(content)
        file.publish(path.name)
    except BaseException:
        file.discard()
        raise


class PartFile:
    """A new file under a temporary name; `publish` gives it its own name in one step.

    `name` is that name as far as it is known: errors and the temporary name contain it.
    """

    def __init__(self, folder: Path, mode: int = 0o666, name: str = "file") -> None:
        self.path = folder / f"{name}.{secrets.token_hex(8)}.part"
        self.size = 0  # bytes written so far
        self._named = folder / name
        with naming(self._named):
            self._file = open(self.path, "xb", opener=_opener(os.O_NOFOLLOW, mode))  # noqa: SIM115

    def write(self, content: bytes | memoryview) -> None:
        """Add bytes to the end."""
        with naming(self._named):
            self._file.write(content)
        self.size += len(content)

    def flush(self) -> None:
        """Make all bytes readable for others, who open `path`."""
        with naming(self._named):
            self._file.flush()

    def publish(self, name: str) -> Path:
        """Wait until all bytes are on the disk, rename the file, and return its path."""
        path = self.path.with_name(name)
        with naming(path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            self.path.replace(path)
        return path

    def discard(self) -> None:
        """Delete the file, which would take up space on a full disk."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def append(path: Path, content: bytes) -> None:
    """Add bytes to the end of a file, and wait until they are on the disk."""
    with naming(path), open_append(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def open_append(path: Path) -> BinaryIO:
    """Open a regular file to write at its end; create it if it does not exist."""
    with suppress(FileNotFoundError):
        _check_regular(path, path.lstat())
    return open(path, "ab", opener=_opener(os.O_NOFOLLOW))


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file; the operating system releases it even after kill -9.

    If another process holds the lock, wait for it with `wait`, otherwise raise BlockingIOError.
    """
    with naming(path):
        file = open_append(path)
    with file:
        with naming(path):
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its parents so that they survive a power cut; it may exist already."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    with naming(path):
        path.mkdir(mode, parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def check_no_link(path: Path) -> None:
    """Raise OSError if a path is a symbolic link, since its content would be in another place."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))


def is_part(name: str) -> bool:
    """Return true for the name of a file whose writing has not finished."""
    return _PART.fullmatch(name) is not None


def discard_parts(folder: Path, of: Collection[str] | None = None) -> None:
    """Delete unfinished files of killed processes: those of the names in `of`, or all."""
    for path in folder.iterdir():
        part = _PART.fullmatch(path.name)
        if part and (of is None or part[1] in of):
            path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Wait until renames and deletions in a folder are on the disk."""
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


def _opener(extra_flags: int, mode: int = 0o666) -> Callable[[str, int], int]:
    """Return an opener for `open` with more flags; it never waits for the other end of a pipe."""
    return lambda path, flags: os.open(path, flags | extra_flags | os.O_NONBLOCK, mode)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to every OSError: on a full disk the operating system does not name the file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


@contextmanager
def explaining() -> Iterator[None]:
    """Convert every OSError to a RunError that tells the user what to do."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error) from None


def cannot_write(error: OSError) -> RunError:
    """Return the RunError for a file of a run that cannot be written."""
    return RunError(
        f"cannot write {error.filename}: {error.strerror}. The last completed round is safe: free "
        "disk space or check the permissions, then continue with `fedgh resume`"
    )
