"""Tables for spreadsheet programs, which evaluate text that looks like a formula."""

import csv
import io

import pytest

from fedgh.tables import Column, Sheet


def written(*cells: str | float | None) -> list[str]:
    """Cells as a program finds them in a CSV file."""
    columns = [Column(str(number)) for number in range(len(cells))]
    text = Sheet("", "", columns, [cells]).csv()
    return list(csv.reader(io.StringIO(text, newline="")))[1]


@pytest.mark.parametrize(
    "cell",
    [
        '=HYPERLINK("https://example.org")',
        "=1+1",
        "+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(1)",
        "\t=1",
        "\rcat",
        "  =1",
        "\n@A1",
        "-",
        "-1e",
    ],
)
def test_text_that_looks_like_a_formula_is_escaped(cell: str) -> None:
    assert written(cell, "cat") == [f"'{cell}", "cat"]


@pytest.mark.parametrize("cell", ["cat", "a=b", "1-2", "", " dog", "'=1", "-1", "+2.5", "-1e-9"])
def test_other_texts_are_unchanged(cell: str) -> None:
    assert written(cell, "cat") == [cell, "cat"]


@pytest.mark.parametrize("cell", ["a\n=1", "a\r=1", 'a"\n=1', "a,=1"])
def test_a_text_with_separators_is_one_cell(cell: str) -> None:
    assert written(cell, "cat") == [cell, "cat"]
    assert f'"{cell.replace(chr(34), 2 * chr(34))}"' in Sheet("", "", [Column("")], [[cell]]).csv()


def test_numbers_are_unchanged() -> None:
    assert written(-1, -0.5, 1e-9, None) == ["-1", "-0.5", "1e-09", ""]


def test_cells_that_are_not_text_are_written() -> None:
    assert written("caf\udce9.png") == ["caf?.png"]


def test_headings_that_look_like_formulas_are_escaped() -> None:
    assert Sheet("", "", [Column("=1")], []).csv() == "'=1\n"
