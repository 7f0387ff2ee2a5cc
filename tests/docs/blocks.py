"""The code blocks of a page, and what is typed in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"[Ii]n a file `([\w./-]+)`[^\n]*:$")
"""How a page says, in the line before a block, that the block is a file."""
COMMENT = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True)
class Block:
    """A block, its language, and the name of the file that it is, if it is one."""

    page: str
    line: int
    language: str
    text: str
    file: str | None

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command line without its comment, and the output that the page shows under it."""

    text: str
    output: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [_block(page, text, found) for found in BLOCK.finditer(text)]


def commands(block: Block) -> Iterator[Command]:
    """What is typed after each `$`, lines that end in a backslash joined."""
    for part in re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        typed, *output = part.rstrip().splitlines()
        yield Command(" ".join(COMMENT.sub("", typed).split()), tuple(output))


def _block(page: str, text: str, found: re.Match[str]) -> Block:
    before = text[: found.start()]
    said = NAMED.search(before.rstrip().rpartition("\n\n")[2].replace("\n", " "))
    return Block(page, before.count("\n") + 1, found[2], found[3], said[1] if said else None)
