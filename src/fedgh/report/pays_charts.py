"""Charts of when federating pays: the gain over training alone, and what was sent for it."""

from collections.abc import Sequence

import altair as alt

from fedgh.paper.pays import ALONE, Entry, Where, gains
from fedgh.paper.reproduce import Result
from fedgh.paper.study import Case
from fedgh.report.charts import Rows
from fedgh.report.page import Figure

CELL_WIDTH, CELL_HEIGHT = 58, 34
STRONG = 0.72
"""The share of the largest gain from which on a cell has a strong colour."""

PANEL = 190


def figures(result: Result, found: Sequence[Entry]) -> list[Figure]:
    """A map of gains on the own data, one over all classes, and gains against bytes."""
    name = result.request.name
    words: dict[Where, str] = {"own": "on the clients' own test data", "all": "over all classes"}
    made = []
    for where, what in words.items():
        rows = _cells(found, where)
        if any("gain" in row for row in rows):
            caption = f"Gain over training alone {what}, in points ± its standard error; in the "
            caption += "first row the accuracy of training alone."
            chart = _map(rows, result.study.methods, f"Gain over training alone {what}.")
            made.append(Figure(f"{name}-{where}", caption, chart, whole_width=True))
    if dots := _dots(found):
        caption = "Gain over training alone on the own test data against what a client sends and "
        caption += "receives over the whole run; at the left edge what sends nothing."
        chart = _against_bytes(dots, result.study.methods)
        made.append(Figure(f"{name}-bytes", caption, chart, whole_width=True))
    return made


def _map(rows: Rows, methods: Sequence[str], described: str) -> alt.VConcatChart:
    """A map for each data set below one another: methods down, settings across in their groups."""
    largest = max(1.0, *(abs(row["gain"]) for row in rows if "gain" in row))
    maps = [
        _map_of([row for row in rows if row["data"] == data], data, methods, largest)
        for data in _once(rows, "data")
    ]
    chart: alt.VConcatChart = alt.vconcat(*maps, spacing=28).properties(description=described)
    return chart


def _map_of(rows: Rows, data: str, methods: Sequence[str], largest: float) -> alt.FacetChart:
    shown = _once(rows, "method")
    base = alt.Chart().encode(
        x=alt.X(
            "setting:N",
            title=None,
            sort=_once(rows, "setting"),
            axis=alt.Axis(orient="bottom", labelAngle=0, labelLimit=CELL_WIDTH, ticks=False, domain=False),
        ),
        y=alt.Y(
            "method:N",
            title=None,
            sort=[method for method in methods if method in shown],
            axis=alt.Axis(labelLimit=260, ticks=False, domain=False),
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
                scale=alt.Scale(domain=[-largest, largest], domainMid=0),
                legend=alt.Legend(gradientLength=120, format="+.0f"),
            )
        )
    )
    strong = f"isValid(datum.gain) && abs(datum.gain) > {STRONG * largest}"
    on_strong, on_pale = (base.transform_filter(test) for test in (strong, f"!({strong})"))
    texts = [
        side.mark_text(style=style, dy=dy, fontSize=size).encode(text=f"{field}:N")
        for side, style in ((on_strong, "on-strong"), (on_pale, "on-pale"))
        for field, dy, size in (("text", -6, 12), ("error", 8, 10))
    ]
    chart: alt.FacetChart = (
        alt.layer(cells, *texts)
        .properties(width=alt.Step(CELL_WIDTH), height=alt.Step(CELL_HEIGHT))
        .facet(
            column=alt.Column("group:N", title=data, sort=_once(rows, "group")),
            data={"values": rows},
            spacing=14,
        )
        .resolve_scale(x="independent")
    )
    return chart


def _against_bytes(rows: Rows, methods: Sequence[str]) -> alt.FacetChart:
    """A panel for each data set and number of samples."""
    sent = [row["sent"] for row in rows if row["sent"]]
    edge = 10.0 ** (len(str(int(min(sent, default=10)))) - 2)  # a power of ten left of all others
    for row in rows:
        row["x"] = row["sent"] or edge
    shown = [method for method in methods if method in _once(rows, "method")]
    base = alt.Chart().encode(
        x=alt.X(
            "x:Q",
            title="sent and received per client, bytes",
            scale=alt.Scale(type="log", domainMin=edge / 2, nice=False, padding=8),
            axis=alt.Axis(
                labelExpr=f"datum.value == {edge} ? 'none' : format(datum.value, '~s')",
                tickCount=5,
                grid=False,
            ),
        ),
        color=alt.Color(
            "method:N",
            title=None,
            sort=shown,
            legend=alt.Legend(orient="top", columns=3, labelLimit=300),
        ),
    )
    y = alt.Scale(zero=True)
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        y=alt.Y("gain:Q", title="gain, points", scale=y),
        shape=alt.Shape("group:N", title=None, legend=alt.Legend(orient="top")),
        tooltip=["method:N", "title:N", "text:N", "error:N", "sent:Q"],
    )
    spreads = base.mark_rule().encode(y=alt.Y("low:Q", scale=y), y2="high:Q")
    zero = alt.Chart().mark_rule(strokeDash=[4, 4], opacity=0.6).encode(y=alt.datum(0))
    chart: alt.FacetChart = (
        alt.layer(zero, spreads, points, data={"values": rows})
        .properties(width=PANEL, height=PANEL)
        .facet(
            column=alt.Column("setting:N", title=None, sort=_once(rows, "setting")),
            row=alt.Row("data:N", title=None, sort=_once(rows, "data")),
        )
        .properties(description="Gain over training alone against the bytes sent per client.")
    )
    return chart


def _cells(found: Sequence[Entry], where: Where) -> Rows:
    """What the cells of a map print: a gain, the accuracy of training alone, or a dash."""
    rows: Rows = []
    for entry, gain in gains(found, where):
        row = {"method": entry.method, **_place(entry.case)}
        accuracy = entry.accuracy(where)
        if gain is not None:
            row |= {"gain": 100 * gain.mean, "text": f"{100 * gain.mean:+.1f}", "over": gain.over}
            row["error"] = "" if gain.error is None else f"± {100 * gain.error:.1f}"
        elif entry.method == ALONE and accuracy is not None:
            row["text"] = f"{100 * accuracy:.1f}%"
        else:
            row["text"] = "–"
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


def _place(case: Case) -> dict[str, str]:
    """Data, group and setting: the parts of a title."""
    data, group, setting = case.title.split(", ", 2)
    return {"title": case.title, "data": data, "group": group, "setting": setting}


def _once(rows: Rows, field: str) -> list[str]:
    """The values of a field in their order."""
    return list(dict.fromkeys(row[field] for row in rows))
