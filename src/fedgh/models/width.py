"""Widths in the names of networks: `cnn1@1/2` has half the units of `cnn1` in each hidden layer."""

import re
from collections.abc import Callable
from fractions import Fraction
from inspect import signature
from math import ceil

FULL = Fraction(1)

MAX_DENOMINATOR = 1000
"""Largest denominator of a width in lowest terms."""

WIDTH_TEXT = re.compile(r"[1-9][0-9]{0,3}(/[1-9][0-9]{0,3})?")


def read_width(text: str) -> Fraction | None:
    """Return the width in a text such as `1/2`; None unless it is above 0 and at most 1."""
    if not WIDTH_TEXT.fullmatch(text):
        return None
    width = Fraction(text)
    return width if width <= 1 and width.denominator <= MAX_DENOMINATOR else None


def units(width: Fraction, count: int) -> int:
    """Return the number of units, of `count`, in a layer of this width: at least one."""
    return ceil(width * count)


def takes_width(make: Callable[..., object]) -> bool:
    """Return True if a function has a parameter `width`."""
    try:
        return "width" in signature(make).parameters
    except (TypeError, ValueError):  # functions in C need not have a signature
        return False
