"""Every code block of a page runs, unless `tables` lists it with a reason."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.blocks import PAGES, blocks, commands
from tests.docs.reader import Reader
from tests.docs.tables import GIVEN, NOT_RUN

BLOCKS = {page: blocks(page) for page in PAGES}
WITH_CODE = [page for page, of_page in BLOCKS.items() if {b.language for b in of_page} - {"text"}]


def write_images(files: Iterable[Path]) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "white").save(file)


@pytest.mark.parametrize("page", WITH_CODE)
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / name for name in GIVEN.get(page, ()))
    reader = Reader(tmp_path, monkeypatch)
    try:
        for block in BLOCKS[page]:
            reader.follow(block)
    finally:
        reader.leave()


def test_the_tables_list_only_commands_and_pages_that_exist() -> None:
    all_blocks = [block for of_page in BLOCKS.values() for block in of_page]
    shown = {c.text for b in all_blocks if b.language == "console" for c in commands(b)}
    assert set(NOT_RUN) <= shown
    assert set(GIVEN) <= set(PAGES)


def test_every_fence_of_a_page_belongs_to_a_block() -> None:
    """A block without an end, or one that the pattern does not match, would not be tested."""
    for page, of_page in BLOCKS.items():
        fences = (Path(__file__).parents[2] / page).read_text(encoding="utf-8").count("```")
        assert fences == 2 * len(of_page), page
