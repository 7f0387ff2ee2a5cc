"""A table of results, as Markdown for people and CSV for programs."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Cell = str | int | float | None

_FORMULA = re.compile(r"[\t\r]|\s*[=+@-]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")  # as labels may be


@dataclass(frozen=True)
class Column:
    """A heading, and how the numbers below it are shown."""

    title: str
    digits: int = 2
    signed: bool = False
    significant: bool = False  # the digits are those that count, not those after the point

    def show(self, cell: Cell) -> str:
        """A cell for a reader; what there is none of is a dash."""
        if cell is None:
            return "-"
        if isinstance(cell, str):
            return cell
        if self.significant:
            return f"{cell:,.{self.digits}g}"
        rounded = round(cell, self.digits) + 0.0  # no minus before a zero
        return f"{rounded:{'+' if self.signed else ''},.{self.digits}f}"


@dataclass(frozen=True)
class Sheet:
    """Columns and rows, and what a reader has to know about them."""

    name: str  # the end of its file's name
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def markdown(self) -> str:
        """The table with numbers rounded."""
        heads = [column.title for column in self.columns]
        numeric = [all(not isinstance(row[i], str) for row in self.rows) for i in range(len(heads))]
        body = [
            [
                column.show(cell).replace("|", "\\|")
                for column, cell in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]
        rule = ["--:" if right else "---" for right in numeric]
        lines = ["| " + " | ".join(line) + " |" for line in [heads, rule, *body]]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """The table with numbers as they are."""
        return csv_text([[column.title for column in self.columns], *self.rows])


def csv_text(rows: Iterable[Iterable[Cell]]) -> str:
    """Rows as CSV that UTF-8 can express and in which a spreadsheet program finds no formula."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(map(_inert, row) for row in rows)
    lines = text.getvalue().replace("\r\n", "\n")  # only now, so that a lone \r is quoted, too
    return lines.encode(errors="replace").decode()  # the name of a file may be no text


def _inert(cell: Cell) -> Cell:
    """A cell, with a quote before a text that a spreadsheet program would compute."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell
