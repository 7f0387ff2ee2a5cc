"""What a person can put right: shown as a message, never as a traceback.

And how other people's words are shown, what is imported by name, what is not known.
"""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any


class FedghError(Exception):
    """Something is wrong with the request or its surroundings; the text says what to do next."""


class ConfigError(FedghError):
    """The configuration asks for something unknown, ill-typed or impossible."""


class MethodError(ConfigError):
    """The method cannot work with these clients."""


class DataError(FedghError):
    """Data are missing, damaged, or do not allow what was asked of them."""


class WireError(FedghError):
    """A message from another party is not what was declared.

    Its text may quote another party's, so it is made harmless here.
    """

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class RunError(FedghError):
    """A run cannot go on."""


MAX_TEXT = 500
"""Characters of a text from another party that are shown or kept."""


def printable(text: str) -> str:
    """A text from another party in one line of harmless characters, not too many."""
    kept = "".join(char if char.isprintable() else " " for char in text[: 2 * MAX_TEXT])
    return " ".join(kept.split())[:MAX_TEXT]


def one_line(problem: Exception) -> str:
    """What happened and where, without a path that tells about the machine."""
    where = traceback.extract_tb(problem.__traceback__)[-1]
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text} ({Path(where.filename).name}:{where.lineno})"


def import_object(name: str) -> Any:
    """What `package.module:name` names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # importing runs a user's code, which may raise anything
        raise ConfigError(f"cannot import '{name}': {type(error).__name__}: {error}") from None


def unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """Say that there is no such thing, and what was probably meant."""
    known = list(known)
    near = get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    return f"no {kind} '{given}'; {hint}"
