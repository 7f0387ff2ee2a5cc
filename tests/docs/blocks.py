"""The code blocks of a page, and the commands in them."""

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
FILE_NAME = re.compile(r"[Ii]n a file `([\w./-]+)`[^\n]*:$")
"""The text before a block that is the content of a file."""
COMMENT = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True)
class Block:
    """A code block, its language, and the name of the file of which it is the content, if any."""

    page: str
    line: int
    language: str
    text: str
    file: str | None

    @property
    def where(self) -> str:
        """Page and line, for error messages."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command line without its comment, and the output that the page shows under it."""

    text: str
    output: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """Return all blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [_block(page, text, match) for match in BLOCK.finditer(text)]


def commands(block: Block) -> Iterator[Command]:
    """Yield the command after each `$`; lines that end in a backslash are joined."""
    for part in re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        typed, *output = part.rstrip().splitlines()
        yield Command(" ".join(COMMENT.sub("", typed).split()), tuple(output))


def _block(page: str, text: str, match: re.Match[str]) -> Block:
    before = text[: match.start()]
    file = FILE_NAME.search(before.rstrip().rpartition("\n\n")[2].replace("\n", " "))
    return Block(page, before.count("\n") + 1, match[2], match[3], file[1] if file else None)
