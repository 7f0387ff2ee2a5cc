"""Charts of when federating pays: the gain over training alone, and what was sent for it."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from fedgh.report.charts import Rows
from fedgh.report.page import Figure
from fedgh.studies.pays import ALONE, Entry, Where, gains
from fedgh.studies.study import Setting
from fedgh.tables import Column

CELL_WIDTH, CELL_HEIGHT = 58, 34
STRONG = 0.72
"""The share of the largest gain from which on a cell has a strong colour."""

PANEL = 190
POINTS = Column("", digits=1, signed=True)


def figures(name: str, methods: Sequence[str], found: Sequence[Entry]) -> list[Figure]:
    """A map of gains on the own data, one over all classes, and gains against bytes.

    `name` begins the ids; rows and colours have the order of `methods`.
    """
    words: dict[Where, str] = {"own": "on the clients' own test data", "all": "over all classes"}
    made = []
    for where, what in words.items():
        rows = _cells(found, where)
        if any("gain" in row for row in rows):
            caption = f"Gain over training alone {what}, in points ± its standard error; in the "
            caption += "first row the accuracy of training alone. A dash: no result."
            chart = _map(rows, methods, f"Gain over training alone {what}.")
            made.append(Figure(f"{name}-{where}", caption, chart, whole_width=True))
    if dots := _dots(found):
        caption = "Gain over training alone on the own test data against what a client sends and "
        caption += "receives over the whole run; at the left edge what sends nothing. Lines are a "
        caption += "standard error long on either side."
        panels = _against_bytes(dots, methods)
        made.append(Figure(f"{name}-bytes", caption, panels, whole_width=True))
    return made


def _map(rows: Rows, methods: Sequence[str], described: str) -> alt.VConcatChart:
    """A map for each data set below one another: methods down, settings across in their groups."""
    largest = max(1.0, *(abs(row["gain"]) for row in rows if "gain" in row))
    shown = _once(rows, "method")
    order = [method for method in methods if method in shown]
    maps = []
    for data in _once(rows, "data"):
        here = [row for row in rows if row["data"] == data]
        groups = [
            _cells_of([row for row in here if row["group"] == group], group, order, largest)
            for group in _once(here, "group")
        ]
        first, *others = groups
        bare = [group.encode(y=_method_axis(order, labels=False)) for group in others]
        title = alt.TitleParams(data, anchor="middle")
        maps.append(alt.hconcat(first, *bare, spacing=14, title=title))
    chart: alt.VConcatChart = alt.vconcat(*maps, spacing=28).properties(description=described)
    return chart


def _cells_of(rows: Rows, group: str, methods: Sequence[str], largest: float) -> alt.LayerChart:
    """The settings of one group."""
    settings = _once(rows, "setting")
    base = alt.Chart().encode(
        x=alt.X(
            "setting:N",
            title=None,
            scale=alt.Scale(domain=settings),
            axis=alt.Axis(
                labelExpr="split(datum.label, ' ')", labelAngle=0, ticks=False, domain=False
            ),
        ),
        tooltip=["method:N", "title:N", "text:N", "error:N", "over:N"],
    )
    cells = (
        base.transform_filter("isValid(datum.gain)")
        .mark_rect()
        .encode(
            color=alt.Color(
                "gain:Q",
                title="points",
                scale=alt.Scale(domain=[-largest, largest], domainMid=0, interpolate="rgb"),
                legend=alt.Legend(gradientLength=120, format="+.0f"),
            )
        )
    )
    strong = f"isValid(datum.gain) && abs(datum.gain) > {STRONG * largest}"
    texts = [
        base.transform_filter(test)
        .mark_text(style=style, dy=dy, fontSize=size)
        .encode(text=f"{field}:N")
        for style, test in (("on-strong", strong), ("on-pale", f"!({strong})"))
        for field, dy, size in (("text", -6, 12), ("error", 8, 10))
    ]
    chart: alt.LayerChart = (
        alt.layer(cells, *texts, data={"values": rows})
        .encode(y=_method_axis(methods, labels=True))
        .properties(
            width=CELL_WIDTH * len(settings),
            height=CELL_HEIGHT * len(methods),
            title=alt.TitleParams(group, fontWeight="normal", fontSize=12),
        )
    )
    return chart


def _method_axis(methods: Sequence[str], labels: bool) -> alt.Y:
    axis = alt.Axis(labelLimit=260, labels=labels, ticks=False, domain=False)
    return alt.Y("method:N", title=None, scale=alt.Scale(domain=list(methods)), axis=axis)


def _against_bytes(rows: Rows, methods: Sequence[str]) -> alt.FacetChart:
    """A panel for each data set and number of samples."""
    sent = [row["sent"] for row in rows if row["sent"]]
    edge = 10.0 ** (len(str(int(min(sent, default=10)))) - 2)  # a power of ten left of all others
    ticks = [edge * 100**step for step in range(8)]
    for row in rows:
        row["x"] = row["sent"] or edge
    shown, settings = _once(rows, "method"), _once(rows, "setting")
    panels = [_panel(data, setting) for data in _once(rows, "data") for setting in settings]
    base = alt.Chart().encode(
        x=alt.X(
            "x:Q",
            title="bytes per client",
            scale=alt.Scale(type="log", nice=False, padding=10),
            axis=alt.Axis(
                values=[tick for tick in ticks if tick <= max(sent, default=edge)],
                labelExpr=f"datum.value <= {edge} ? 'none' : format(datum.value, '~s')",
                grid=False,
            ),
        ),
        color=alt.Color(
            "method:N",
            title=None,
            scale=alt.Scale(domain=[method for method in methods if method in shown]),
            legend=alt.Legend(orient="top", columns=3, labelLimit=300),
        ),
    )
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        y=alt.Y("gain:Q", title="gain, points", scale=alt.Scale(padding=8)),
        shape=alt.Shape(
            "group:N",
            title=None,
            scale=alt.Scale(domain=_once(rows, "group")),
            legend=alt.Legend(orient="bottom", columns=4),
        ),
        tooltip=["method:N", "title:N", "text:N", "error:N", "over:N", "sent:Q"],
    )
    spreads = base.mark_rule().encode(y="low:Q", y2="high:Q")
    zero = alt.Chart().mark_rule(strokeDash=[4, 4], opacity=0.6).encode(y=alt.datum(0))
    chart: alt.FacetChart = (
        alt.layer(zero, spreads, points, data={"values": rows})
        .properties(width=PANEL, height=PANEL)
        .facet(
            facet=alt.Facet("panel:N", title=None, sort=panels),
            columns=len(settings),
        )
        .properties(description="Gain over training alone against the bytes sent per client.")
    )
    return chart


def _cells(found: Sequence[Entry], where: Where) -> Rows:
    """What the cells of a map print: a gain, the accuracy of training alone, or a dash."""
    rows: Rows = []
    for entry, gain in gains(found, where):
        row: dict[str, Any] = {
            "method": entry.method,
            **_place(entry.setting),
            "error": "",
            "over": "",
        }
        accuracy = entry.accuracy(where)
        if gain is not None:
            points = 100 * gain.mean
            row |= {"gain": points, "text": POINTS.show(points), "over": gain.over}
            row["error"] = "" if gain.error is None else f"± {100 * gain.error:.1f}"
        elif entry.method == ALONE and accuracy is not None:
            row["text"] = f"{100 * accuracy:.1f}%"
        else:
            row["text"] = "-"
        rows.append(row)
    return rows


def _dots(found: Sequence[Entry]) -> Rows:
    rows: Rows = []
    cells = _cells(found, "own")
    for (entry, gain), row in zip(gains(found, "own"), cells, strict=True):
        if gain is not None:
            spread = 100 * (gain.error or 0.0)
            ends = {"low": row["gain"] - spread, "high": row["gain"] + spread}
            rows.append({**row, **ends, "sent": entry.sent})
    return rows


def _place(case: Setting) -> dict[str, str]:
    """Data, group and setting: the parts of a title."""
    data, group, setting = case.title.split(", ", 2)
    place = {"data": data, "group": group, "setting": setting}
    return {"title": case.title, **place, "panel": _panel(data, setting)}


def _panel(data: str, setting: str) -> str:
    return f"{data}, {setting}"


def _once(rows: Rows, field: str) -> list[str]:
    """The values of a field in their order."""
    return list(dict.fromkeys(row[field] for row in rows))
