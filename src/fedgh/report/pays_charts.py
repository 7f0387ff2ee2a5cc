"""Charts of studies on when federating pays: gains over training alone, and bytes sent."""

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
"""The share of the largest gain above which a cell is so dark that its text must be light."""

PANEL = 190
"""Pixels per side of a panel."""

POINTS = Column("", digits=1, signed=True)


def figures(name: str, methods: Sequence[str], entries: Sequence[Entry]) -> list[Figure]:
    """Return maps of gains on the clients' own data and on all classes, and gains over bytes.

    `name` is the prefix of the ids; rows and colours are in the order of `methods`.
    """
    test_data: dict[Where, str] = {
        "own": "on the clients' own test data",
        "all": "on test data of all classes",
    }
    figures = []
    for where, which in test_data.items():
        rows = _cells(entries, where)
        if any("gain" in row for row in rows):
            caption = (
                f"Gain over training alone {which}, in percentage points ± its standard error; the "
                "first row is the accuracy of training alone. A dash means no result."
            )
            chart = _map(rows, methods, f"Gain over training alone {which}.")
            figures.append(Figure(f"{name}-{where}", caption, chart, whole_width=True))
    if points := _points(entries):
        caption = (
            "Gain over training alone on the clients' own test data, over the bytes that a client "
            "sends and receives in the whole run. Methods at the left edge send nothing. Vertical "
            "lines extend one standard error up and down."
        )
        panels = _over_bytes(points, methods)
        figures.append(Figure(f"{name}-bytes", caption, panels, whole_width=True))
    return figures


def _map(rows: Rows, methods: Sequence[str], description: str) -> alt.VConcatChart:
    """Return a map for each data set: a row for each method, a column for each setting."""
    largest = max(1.0, *(abs(row["gain"]) for row in rows if "gain" in row))
    shown = _unique(rows, "method")
    order = [method for method in methods if method in shown]
    maps = []
    for data in _unique(rows, "data"):
        of_data = [row for row in rows if row["data"] == data]
        groups = [
            _group_map([row for row in of_data if row["group"] == group], group, order, largest)
            for group in _unique(of_data, "group")
        ]
        first, *others = groups
        unlabelled = [group.encode(y=_method_axis(order, labels=False)) for group in others]
        title = alt.TitleParams(data, anchor="middle")
        maps.append(alt.hconcat(first, *unlabelled, spacing=14, title=title))
    chart: alt.VConcatChart = alt.vconcat(*maps, spacing=28).properties(description=description)
    return chart


def _group_map(rows: Rows, group: str, methods: Sequence[str], largest: float) -> alt.LayerChart:
    """Return the map of the settings of one group."""
    settings = _unique(rows, "setting")
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


def _over_bytes(rows: Rows, methods: Sequence[str]) -> alt.FacetChart:
    """Return gains over bytes, in a panel for each data set and number of samples."""
    sent = [row["sent"] for row in rows if row["sent"]]
    # A logarithmic axis has no 0: methods that send nothing are at a power of ten below all others.
    edge = 10.0 ** (len(str(int(min(sent, default=10)))) - 2)
    ticks = [edge * 100**step for step in range(8)]
    for row in rows:
        row["x"] = row["sent"] or edge
    shown, settings = _unique(rows, "method"), _unique(rows, "setting")
    panels = [_panel(data, setting) for data in _unique(rows, "data") for setting in settings]
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
            scale=alt.Scale(domain=_unique(rows, "group")),
            legend=alt.Legend(orient="bottom", columns=4),
        ),
        tooltip=["method:N", "title:N", "text:N", "error:N", "over:N", "sent:Q"],
    )
    errors = base.mark_rule().encode(y="low:Q", y2="high:Q")
    zero = alt.Chart().mark_rule(strokeDash=[4, 4], opacity=0.6).encode(y=alt.datum(0))
    chart: alt.FacetChart = (
        alt.layer(zero, errors, points, data={"values": rows})
        .properties(width=PANEL, height=PANEL)
        .facet(
            facet=alt.Facet("panel:N", title=None, sort=panels),
            columns=len(settings),
        )
        .properties(description="Gain over training alone against the bytes sent per client.")
    )
    return chart


def _cells(entries: Sequence[Entry], where: Where) -> Rows:
    """Return the cells of a map: a gain, the accuracy of training alone, or a dash."""
    rows: Rows = []
    for entry, gain in gains(entries, where):
        row: dict[str, Any] = {
            "method": entry.method,
            **_title_parts(entry.setting),
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


def _points(entries: Sequence[Entry]) -> Rows:
    rows: Rows = []
    cells = _cells(entries, "own")
    for (entry, gain), row in zip(gains(entries, "own"), cells, strict=True):
        if gain is not None:
            error = 100 * (gain.error or 0.0)
            interval = {"low": row["gain"] - error, "high": row["gain"] + error}
            rows.append({**row, **interval, "sent": entry.sent})
    return rows


def _title_parts(case: Setting) -> dict[str, str]:
    """Return the parts of a setting's title (data, group and setting), and its panel."""
    data, group, setting = case.title.split(", ", 2)
    parts = {"data": data, "group": group, "setting": setting}
    return {"title": case.title, **parts, "panel": _panel(data, setting)}


def _panel(data: str, setting: str) -> str:
    return f"{data}, {setting}"


def _unique(rows: Rows, field: str) -> list[str]:
    """Return the distinct values of a field, in order of first appearance."""
    return list(dict.fromkeys(row[field] for row in rows))
