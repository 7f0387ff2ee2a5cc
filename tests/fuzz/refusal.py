"""Run a function that must succeed or raise an error of fedgh."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedgh.errors import FedghError

T = TypeVar("T")


@dataclass(frozen=True)
class Refused:
    """The text of an error of fedgh."""

    why: str


def attempt(kind: type[FedghError], do: Callable[[], T]) -> T | Refused:
    """Return the result of `do`, or Refused for an error of this kind; raise any other error."""
    try:
        return do()
    except kind as error:
        return Refused(str(error))
