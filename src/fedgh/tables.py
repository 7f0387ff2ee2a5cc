"""Tables of results, as Markdown and LaTeX for people and as CSV for programs."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedgh.latex import escape


@dataclass(frozen=True)
class Measured:
    """A mean with its standard deviation over seeds, and how a table marks it."""

    mean: float
    std: float | None = None  # None with one seed
    best: bool = False  # in bold
    marks: str = ""  # such as * for a significant difference

    def rounded(self, most: int) -> tuple[str, str]:
        """Return both with the digits that the standard deviation warrants, at most `most`.

        It gets one digit, or two if the first is 1: 98.18 ± 0.78 becomes 98.2 ± 0.8. The mean ends
        at the same place. The second text is empty if there is no standard deviation.
        """
        if self.std is None:
            return f"{self.mean:.{most}f}", ""
        digits = most
        if self.std > 0:
            exponent = math.floor(math.log10(self.std))
            first_is_one = self.std / 10.0**exponent < 1.95
            digits = min(most, max(0, first_is_one - exponent))
        return f"{self.mean:.{digits}f}", f"{self.std:.{digits}f}"


Cell = str | int | float | Measured | None

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
        if isinstance(cell, Measured):
            mean, std = cell.rounded(self.digits)
            return mean + (f" ± {std}" if std else "") + cell.marks
        if self.significant:
            return f"{cell:,.{self.digits}g}"
        rounded = round(cell, self.digits) + 0.0  # + 0.0 turns -0.0 into 0.0
        return f"{rounded:{'+' if self.signed else ''},.{self.digits}f}"

    def markdown(self, cell: Cell) -> str:
        """Return a cell as Markdown; the best value is bold."""
        text = self.show(cell).replace("|", "\\|").replace("*", "\\*")
        return f"**{text}**" if isinstance(cell, Measured) and cell.best else text

    def latex(self, cell: Cell) -> str:
        """Return a cell as LaTeX; the best value is bold."""
        if not isinstance(cell, Measured):
            text = escape(self.show(cell))
            # A hyphen before a digit would be printed shorter than a minus sign.
            return re.sub(r"^[+-](?=\d)", r"$\g<0>$", text)
        mean, std = cell.rounded(self.digits)
        bold = rf"\mathbf{{{mean}}}" if cell.best else mean
        marks = "".join({"†": r"\dagger"}.get(mark, mark) for mark in cell.marks)
        spread = rf" \pm {std}" if std else ""
        return f"${bold}{spread}^{{{marks}}}$" if marks else f"${bold}{spread}$"


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
        body = [
            [column.markdown(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]
        rule = ["--:" if numeric else "---" for numeric in self._numeric()]
        lines = ["| " + " | ".join(line) + " |" for line in [titles, rule, *body]]
        note = self.note.replace("*", "\\*")
        return "\n".join(lines) + "\n" + (f"\n{note}\n" if note else "")

    def latex(self) -> str:
        """Return the table as LaTeX for the packages booktabs and graphicx, with rounded numbers.

        Ten columns of numbers fit on a page, in small type with little space between columns. A
        table that is wider than the text, because of long names, is scaled down to its width.
        """
        head = [escape(column.title) for column in self.columns]
        body = [
            [column.latex(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]
        head_line, *lines = [" & ".join(line) + r" \\" for line in [head, *body]]
        alignment = "".join("r" if numeric else "l" for numeric in self._numeric())
        note = rf"  \par\smallskip\parbox{{\linewidth}}{{\footnotesize {escape(self.note)}}}"
        label = re.sub(r"\W+", "-", self.name or "results")
        inner = [r"\toprule", head_line, r"\midrule", *lines, r"\bottomrule"]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering\footnotesize\setlength{\tabcolsep}{2.5pt}",
                rf"  \caption{{{escape(self.title)}}}",
                rf"  \label{{tab:{label}}}",
                r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
                rf"  \begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
                *(f"    {line}" for line in inner),
                r"  \end{tabular}}",
                *([note] if self.note else []),
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """Return the table as CSV, with numbers in full precision.

        A column of means is followed by one with their standard deviations.
        """
        measured = [
            any(isinstance(row[i], Measured) for row in self.rows) for i in range(len(self.columns))
        ]
        titles = [
            title
            for column, several in zip(self.columns, measured, strict=True)
            for title in ([column.title, f"{column.title}, std"] if several else [column.title])
        ]
        lines = [
            [
                value
                for cell, several in zip(row, measured, strict=True)
                for value in (_mean_and_std(cell) if several else [cell])
            ]
            for row in self.rows
        ]
        return csv_text([titles, *lines])

    def _numeric(self) -> list[bool]:
        """Return, for each column, whether it has numbers only."""
        return [
            all(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))
        ]


def _mean_and_std(cell: Cell) -> list[Cell]:
    return [cell.mean, cell.std] if isinstance(cell, Measured) else [cell, None]


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
