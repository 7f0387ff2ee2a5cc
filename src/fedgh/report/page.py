"""A page made of sections of text, charts and tables: one HTML file that needs no other file.

Every string in a section is plain text and is escaped here. Scripts run only if their hash is in
the page's content security policy, which also forbids connections.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from fedgh import tables
from fedgh.files import write_atomic
from fedgh.report.charts import AnyChart
from fedgh.report.vega import asset, javascript, themes
from fedgh.tables import Column, Measured, Sheet


@dataclass(frozen=True)
class Cell:
    """A table cell: the text that is shown, and the value by which rows are sorted."""

    text: str
    value: float | str | None
    best: bool = False  # shown in bold


Value = Cell | str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table that the reader can sort by any column."""

    header: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with its caption; `id` is made of a-z, 0-9 and -, and unique in the page."""

    id: str
    caption: str
    chart: AnyChart
    whole_width: bool = False  # otherwise two figures may share the width of the page


@dataclass(frozen=True)
class Image:
    """A PNG file with its caption; `id` has the same form as that of a figure."""

    id: str
    caption: str
    alt_text: str  # read by screen readers
    png: bytes
    width: int  # pixels on the page


@dataclass(frozen=True)
class Fold:
    """Preformatted text that the reader can unfold."""

    summary: str
    text: str


Part = Figure | Image | Table | Fold


@dataclass(frozen=True)
class Section:
    """A heading, a text, and the parts below it."""

    id: str
    heading: str
    text: str = ""
    parts: Sequence[Part] = ()


@dataclass(frozen=True)
class Page:
    """A title, a summary in one sentence, and sections."""

    title: str
    lead: str
    sections: Sequence[Section]

    def figures(self) -> Iterator[Figure]:
        """Yield all charts, in order."""
        for section in self.sections:
            yield from (part for part in section.parts if isinstance(part, Figure))

    def images(self) -> Iterator[Image]:
        """Yield all images, in order."""
        for section in self.sections:
            yield from (part for part in section.parts if isinstance(part, Image))

    def content(self) -> dict[str, Any]:
        """Return the content that the page's script shows: HTML and chart specifications."""
        return {
            "title": self.title,
            "main": _main(self),
            "charts": {figure.id: figure.chart.to_dict() for figure in self.figures()},
        }


def sheet_table(sheet: Sheet, note: bool = True) -> Table:
    """Return a sheet as a table of a page, by default with its note as the caption."""
    rows = [
        [_shown(column, cell) for column, cell in zip(sheet.columns, row, strict=True)]
        for row in sheet.rows
    ]
    return Table([column.title for column in sheet.columns], rows, sheet.note if note else "")


def _shown(column: Column, cell: tables.Cell) -> Cell:
    if isinstance(cell, Measured):
        return Cell(column.show(cell), cell.mean, cell.best)
    return Cell(column.show(cell), cell)


def write(page: Page, path: Path) -> None:
    """Write a page into a file, atomically."""
    write_atomic(path, html(page).encode())


def html(page: Page) -> str:
    """Return the page as HTML that opens offline."""
    return fill(page.content(), connect="'none'")


def fill(content: dict[str, Any], connect: str, live: bool = False) -> str:
    """Return the HTML page around this content; `connect` lists the allowed connections."""
    scripts = [javascript(), asset("page.js")]
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return Template(asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'",
        title=escape(content["title"]),
        live="live" if live else "",
        style=asset("page.css"),
        main=content["main"],
        charts=_embedded(content["charts"]),
        themes=_embedded(themes()),
        vega=scripts[0],
        script=scripts[1],
    )


def _main(page: Page) -> str:
    links = "".join(
        f'<a href="#{escape(section.id)}">{escape(section.heading)}</a>'
        for section in page.sections
    )
    return (
        f"<header><h1>{escape(page.title)}</h1><p class=lead>{escape(page.lead)}</p></header>"
        f'<nav aria-label="Sections">{links}</nav>' + "".join(map(_section, page.sections))
    )


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    parts = "".join(map(_part, section.parts))
    return (
        f'<section id="{escape(section.id)}"><h2>{escape(section.heading)}</h2>'
        f"{text}<div class=parts>{parts}</div></section>"
    )


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Fold):
        return (
            f"<details><summary>{escape(part.summary)}</summary>"
            f"<pre>{escape(part.text)}</pre></details>"
        )
    if isinstance(part, Image):
        source = f"data:image/png;base64,{b64encode(part.png).decode()}"
        return (
            f'<figure class=whole><img alt="{escape(part.alt_text)}" width={part.width} '
            f'src="{source}"><figcaption>{escape(part.caption)}</figcaption></figure>'
        )
    kind = " class=whole" if part.whole_width else ""
    return (
        f'<figure{kind}><div class=chart data-chart="{escape(part.id)}"></div>'
        f"<figcaption>{escape(part.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = "".join(
        f"<th scope=col aria-sort=none><button type=button>{escape(name)}</button></th>"
        for name in table.header
    )
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return (
        f"<div class=table tabindex=0><table>{caption}<thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(value: Value) -> str:
    cell = value if isinstance(value, Cell) else Cell("-" if value is None else str(value), value)
    kind = " class=number" if isinstance(cell.value, int | float) else ""
    key = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
    text = f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text)
    return f"<td{kind}{key}>{text}</td>"


def _embedded(value: object) -> str:
    """Return JSON that cannot end the script element in which it is embedded."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: \u2028 is escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    return b64encode(hashlib.sha256(script.encode()).digest()).decode()
