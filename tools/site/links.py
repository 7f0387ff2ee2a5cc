"""The links of a Markdown file, outside its code blocks."""

import re
from collections.abc import Callable, Iterator

FENCE = re.compile(r"^\s*(```|~~~)")
TARGET = re.compile(r"(?<=\]\()[^)\s]+")
ELSEWHERE = re.compile(r"^([a-z]+:|#|/)", re.IGNORECASE)
"""What does not name a file beside this one: other sites, anchors of the same page."""


def replaced(text: str, new: Callable[[str], str]) -> str:
    """The same text with `new(path)` for every path that a link or an image names."""
    lines, in_code = [], False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line):
            in_code = not in_code
        lines.append(line if in_code else TARGET.sub(lambda found: _replace(found[0], new), line))
    return "".join(lines)


def paths(text: str) -> Iterator[str]:
    """What its links and images name, without anchors, as written."""
    found: list[str] = []

    def note(path: str) -> str:
        found.append(path)
        return path

    replaced(text, note)
    yield from found


def _replace(target: str, new: Callable[[str], str]) -> str:
    if ELSEWHERE.match(target):
        return target
    path, mark, anchor = target.partition("#")
    return new(path) + mark + anchor
