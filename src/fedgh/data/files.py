"""Error messages for data files that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgh.errors import DataError, printable


@contextmanager
def explained(path: Path, kind: str, remedy: str) -> Iterator[None]:
    """Turn any exception of a decoder into a DataError of one line, with a remedy."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{path} is not a readable {kind}: {_why(error)}; {remedy}") from None


def _why(error: Exception) -> str:
    """Return the text of an error without the file's name; its type if it has no text."""
    text = error.strerror if isinstance(error, OSError) else None
    return printable(text or str(error)) or type(error).__name__
