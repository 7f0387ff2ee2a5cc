"""The page of the methods: tables from the code, a section and a drawing for each family."""

import re

from fedgh.methods import METHODS
from fedgh.methods.overview import built_in_methods
from tools import family_drawings, method_table

PAGE = method_table.PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code_and_of_the_measurements() -> None:
    assert method_table.updated(PAGE) == PAGE, "run: python -m tools.method_table"
    assert set(method_table.bytes_sent()) == set(METHODS), "a method was not run on digits"


def test_every_family_has_a_section_with_its_drawing() -> None:
    headings = [heading.lower() for heading in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)]
    for family in built_in_methods():
        assert family in headings
        drawing = family_drawings.file_name(family)
        assert f"(images/families/{drawing})" in PAGE
        file = family_drawings.FOLDER / drawing
        assert file.read_text(encoding="utf-8") == family_drawings.svg(family)


def test_every_method_has_a_section_with_its_paper() -> None:
    headings = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
    names = {heading.lower().replace("-", "_").replace("+", "_plus") for heading in headings}
    assert set(METHODS) <= names
