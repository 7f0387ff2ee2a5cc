"""What the pages show is what runs: every code block is executed, or a table says why not."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.blocks import PAGES, Block, blocks, commands
from tests.docs.reader import Reader
from tests.docs.tables import BLOCKS_ELSEWHERE, GIVEN, NOT_RUN

BLOCKS = {page: blocks(page) for page in PAGES}
WITH_CODE = [page for page, found in BLOCKS.items() if {b.language for b in found} - {"text"}]


def elsewhere(block: Block) -> bool:
    return any(page == block.page and words in block.text for page, words in BLOCKS_ELSEWHERE)


def paint(files: Iterable[Path]) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "white").save(file)


@pytest.mark.parametrize("page", WITH_CODE)
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint(tmp_path / name for name in GIVEN.get(page, ()))
    reader = Reader(tmp_path, monkeypatch)
    try:
        for block in BLOCKS[page]:
            if not elsewhere(block):
                reader.follow(block)
    finally:
        reader.leave()


def test_the_tables_name_only_what_is_there() -> None:
    everything = [block for found in BLOCKS.values() for block in found]
    typed = {c.text for b in everything if b.language == "console" for c in commands(b)}
    assert set(NOT_RUN) <= typed
    assert set(GIVEN) <= set(PAGES)
    for page, words in BLOCKS_ELSEWHERE:
        assert sum(words in block.text for block in BLOCKS[page]) == 1


def test_no_block_is_missed() -> None:
    """A fence that does not end, or that the pattern does not see, would go untested."""
    for page, found in BLOCKS.items():
        fences = (Path(__file__).parents[2] / page).read_text(encoding="utf-8").count("```")
        assert fences == 2 * len(found), page
