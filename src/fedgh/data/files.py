"""One way to refuse a data file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgh.errors import DataError, printable


@contextmanager
def explained(path: Path, kind: str, remedy: str) -> Iterator[None]:
    """Turn whatever a file of unknown origin makes decoders raise into one line with a remedy."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{path} is not a readable {kind}: {_why(error)}; {remedy}") from None


def _why(error: Exception) -> str:
    """Return the text of an error without the file's name; its type when it has no text."""
    said = error.strerror if isinstance(error, OSError) else None
    return printable(said or str(error)) or type(error).__name__
