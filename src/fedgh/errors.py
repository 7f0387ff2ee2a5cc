"""Exceptions that a user can act on, and helpers for their messages.

The command line prints a FedghError as one message, without a traceback. The helpers make the text
of remote parties safe to print, import objects by name, and suggest a known name for an unknown
one.
"""

import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class FedghError(Exception):
    """A problem that the user can solve; the message says what is wrong and what to do next."""


class ConfigError(FedghError):
    """The configuration has an unknown key, a value of the wrong type or an impossible value."""


class MethodError(ConfigError):
    """The method cannot work with these clients, or its code breaks its own declaration."""


class DataError(FedghError):
    """Data are missing, damaged or unsuitable for the experiment."""


class WireError(FedghError):
    """A message from a remote party does not match its declaration.

    The text may quote the remote party, so it is passed through `printable`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class RunError(FedghError):
    """A run cannot start or continue."""


NO_MEMORY = ("can't allocate memory", "Storage size calculation overflowed")
"""Parts of PyTorch's messages about too little memory."""

MAX_TEXT = 500
"""Maximum number of characters of a remote party's text that are shown or stored."""


def printable(text: str) -> str:
    """Return a remote party's text as one line of at most MAX_TEXT printable characters."""
    characters = "".join(char if char.isprintable() else " " for char in text[: 2 * MAX_TEXT])
    return " ".join(characters.split())[:MAX_TEXT]


def one_line(problem: Exception) -> str:
    """Return an exception's type, text, file name and line, without a path of this machine."""
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"


def first_mistake(error: "ValidationError") -> str:
    """Return place and text of the first mistake that pydantic found, fit for one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return printable(f"{where}: {first['msg']}" if where else first["msg"])


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Raise RunError with a readable text if PyTorch cannot allocate the memory for `what`."""
    try:
        yield
    except RuntimeError as error:  # the class that PyTorch raises for main memory
        if not any(text in str(error) for text in NO_MEMORY):
            raise
        found = re.search(r"tried to allocate (\d+) bytes", str(error))
        size = f"{int(found[1]):,} bytes" if found else "more bytes than a number can count"
        raise RunError(
            f"{what} needs {size} of memory at once, more than there are; lower the method's sizes"
        ) from None


def import_object(name: str) -> Any:
    """Import and return the object that `package.module:name` names; raise ConfigError if it fails.

    This runs the module's code. Call it only for names that the user trusts.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # importing runs a user's code, which may raise anything
        raise ConfigError(f"cannot import '{name}': {type(error).__name__}: {error}") from None


def unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """Return a message that `given` is not known, with the most similar known name or all names."""
    known = list(known)
    similar = get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f"did you mean '{similar[0]}'?" if similar else f"known: {', '.join(known)}"
    return f"no {kind} '{given}'; {hint}"
