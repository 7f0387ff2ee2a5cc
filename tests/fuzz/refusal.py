"""The only two ways things may end: they work, or they are refused in words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedgh.errors import FedghError

T = TypeVar("T")


@dataclass(frozen=True)
class Refused:
    """Why something was refused."""

    why: str


def attempt(kind: type[FedghError], do: Callable[[], T]) -> T | Refused:
    """What came of it; any error of another kind fails the test."""
    try:
        return do()
    except kind as error:
        return Refused(str(error))
