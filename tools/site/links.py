"""The links of a Markdown file, outside its code blocks."""

import re
from collections.abc import Callable, Iterator

FENCE = re.compile(r"^\s*(```|~~~)")
TARGET = re.compile(r"(?<=\]\()[^)\s]+")
NOT_A_PATH = re.compile(r"^([a-z]+:|#|/)", re.IGNORECASE)
"""Targets that are not relative paths of files: other sites, anchors of the same page."""


def replaced(text: str, new: Callable[[str], str]) -> str:
    """Return the text with `new(path)` in place of each path in a link or an image."""
    lines, in_code = [], False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line):
            in_code = not in_code
        lines.append(line if in_code else TARGET.sub(lambda match: _replace(match[0], new), line))
    return "".join(lines)


def paths(text: str) -> Iterator[str]:
    """Yield the paths in links and images as they are written, without anchors."""
    collected: list[str] = []

    def collect(path: str) -> str:
        collected.append(path)
        return path

    replaced(text, collect)
    yield from collected


def _replace(target: str, new: Callable[[str], str]) -> str:
    if NOT_A_PATH.match(target):
        return target
    path, mark, anchor = target.partition("#")
    return new(path) + mark + anchor
