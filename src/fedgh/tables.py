"""Tables of results, as Markdown for people and as CSV for programs."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Cell = str | int | float | None

_FORMULA = re.compile(r"[\t\r]|\s*[=+@-]")
"""Start of a text that a spreadsheet program would compute as a formula."""

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")
"""A number as text, which is harmless although it may begin with + or -; labels can be numbers."""


@dataclass(frozen=True)
class Column:
    """The title of a column, and the format of its numbers."""

    title: str
    digits: int = 2
    signed: bool = False
    significant: bool = False  # `digits` counts significant digits, not those after the point

    def show(self, cell: Cell) -> str:
        """Return a cell as text; a missing value becomes '-'."""
        if cell is None:
            return "-"
        if isinstance(cell, str):
            return cell
        if self.significant:
            return f"{cell:,.{self.digits}g}"
        rounded = round(cell, self.digits) + 0.0  # + 0.0 turns -0.0 into 0.0
        return f"{rounded:{'+' if self.signed else ''},.{self.digits}f}"


@dataclass(frozen=True)
class Sheet:
    """A table: columns, rows, a title and a note to the reader."""

    name: str  # the last part of the file name
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown, with rounded numbers."""
        titles = [column.title for column in self.columns]
        numeric = [
            all(not isinstance(row[i], str) for row in self.rows) for i in range(len(titles))
        ]
        body = [
            [
                column.show(cell).replace("|", "\\|")
                for column, cell in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]
        rule = ["--:" if right_aligned else "---" for right_aligned in numeric]
        lines = ["| " + " | ".join(line) + " |" for line in [titles, rule, *body]]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """Return the table as CSV, with numbers in full precision."""
        return csv_text([[column.title for column in self.columns], *self.rows])


def csv_text(rows: Iterable[Iterable[Cell]]) -> str:
    """Return rows as CSV that is valid UTF-8 and has no formula for a spreadsheet program."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(map(_inert, row) for row in rows)
    # Replaced after writing: with \n as line end, the writer would not quote a cell with a lone \r.
    lines = text.getvalue().replace("\r\n", "\n")
    return lines.encode(errors="replace").decode()  # a file name may not be valid UTF-8


def _inert(cell: Cell) -> Cell:
    """Return the cell; a text that a spreadsheet program would compute gets a leading quote."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell
