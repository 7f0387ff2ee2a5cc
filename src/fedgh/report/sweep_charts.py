"""Charts of a comparison or a search with a row for each label, however many there are."""

from collections.abc import Callable, Mapping, Sequence

import altair as alt

from fedgh.formats import human_bytes
from fedgh.report.charts import (
    COLOURS,
    PERCENT,
    ROW,
    AnyChart,
    Rows,
    byte_unit,
    run_colour,
    run_rows,
    wide,
)
from fedgh.studies.significance import SIGNIFICANT
from fedgh.studies.statistics import Row

Spread = tuple[float | None, float | None]
"""A mean and its standard deviation over seeds."""


def accuracies(
    table: Sequence[Row], of: Callable[[Row], Spread], by_seed: Mapping[str, Sequence[float]]
) -> AnyChart:
    """Return a chart of mean ± standard deviation of each label, with a point for each seed."""
    rows: Rows = []
    for row in table:
        mean, std = of(row)
        if mean is not None:
            band = {"low": mean - (std or 0.0), "high": min(1.0, mean + (std or 0.0))}
            rows.append({"run": row.label, "accuracy": mean, **band})
    names = [row["run"] for row in rows]
    points: Rows = [
        {"run": label, "accuracy": score} for label in names for score in by_seed.get(label, ())
    ]
    tooltip = [alt.Tooltip("run:N"), alt.Tooltip("accuracy:Q", format=PERCENT)]
    base = _rows(rows, names, table).encode(tooltip=tooltip)
    layers = [
        base.mark_rule(strokeWidth=2).encode(x=_share_axis("low"), x2="high:Q"),
        base.mark_tick(thickness=3, size=14).encode(x=_share_axis("accuracy")),
    ]
    if points:  # a layer without data would have an axis without end
        each = _rows(points, names, table).mark_point(size=16, opacity=0.7)
        layers.append(each.encode(x=_share_axis("accuracy"), tooltip=tooltip))
    description = "Mean accuracy of each method, with its standard deviation over seeds."
    return wide(alt.layer(*layers), description, ROW * len(names))


def differences(table: Sequence[Row]) -> AnyChart:
    """Return a chart of the difference of each label to the reference, with its interval.

    A filled point is significant in the test over clients and seeds, corrected.
    """
    rows: Rows = [
        {
            "run": row.label,
            "points": 100 * row.difference,
            "low": 100 * (row.difference_low or 0.0),
            "high": 100 * (row.difference_high or 0.0),
            "p": row.p_holm,
            "p over seeds": row.p_seeds_holm,
            "filled": row.p_holm is not None and row.p_holm < SIGNIFICANT,
        }
        for row in table
        if row.difference is not None
    ]
    names = [row["run"] for row in rows]
    numbers = {"points": "+.2f", "low": "+.2f", "high": "+.2f", "p": ".4f", "p over seeds": ".4f"}
    tooltip = [
        alt.Tooltip("run:N"),
        *(alt.Tooltip(f"{field}:Q", format=form) for field, form in numbers.items()),
    ]
    zero = alt.Chart({"values": [{"points": 0}]}).mark_rule(strokeDash=[4, 4], opacity=0.6)
    intervals = _rows(rows, names, table).mark_rule(strokeWidth=2)
    layers = [
        zero.encode(x=_points_axis("points")),
        intervals.encode(x=_points_axis("low"), x2="high:Q", tooltip=tooltip),
    ]
    for filled in (True, False):
        chosen = [row for row in rows if row["filled"] == filled]
        if chosen:  # a layer without data would have an axis without end
            points = _rows(chosen, names, table).mark_point(filled=filled, size=65, opacity=1)
            layers.append(points.encode(x=_points_axis("points"), tooltip=tooltip))
    description = "Difference of each method to the reference with a 95% interval."
    return wide(alt.layer(*layers), description, ROW * len(names))


def bytes_per_round(table: Sequence[Row]) -> AnyChart:
    """Return a chart of the bytes per client and round on a logarithmic axis.

    The axis has no 0: "0 B" of a label that sends nothing is at its left edge.
    """
    sent = {row.label: row.bytes_per_client_round or 0.0 for row in table}
    unit, size = byte_unit(min(count for count in sent.values() if count))
    rows: Rows = [
        {"run": label, "sent": count / size, "text": human_bytes(count)}
        for label, count in sent.items()
    ]
    tooltip = [alt.Tooltip("run:N"), alt.Tooltip("text:N", title="sent")]
    x = alt.X(
        "sent:Q",
        title=f"{unit} per client and round",
        scale=alt.Scale(type="log", padding=10),
        axis=alt.Axis(grid=False, format=",~g", tickCount=4),
    )

    def texts(chosen: Rows) -> alt.Chart:
        base = _rows(chosen, list(sent), table).encode(tooltip=tooltip)
        marks = base.mark_text(align="left", dx=8, fontSize=11, style="on-pale")
        written: alt.Chart = marks.encode(text="text:N", color=alt.Undefined)
        return written

    known = [row for row in rows if row["sent"]]
    points = _rows(known, list(sent), table).mark_point(filled=True, size=70, opacity=1)
    layers = [points.encode(x=x, tooltip=tooltip), texts(known).encode(x=x)]
    nothing = [row for row in rows if not row["sent"]]
    if nothing:
        layers.append(texts(nothing).encode(x=alt.value(0)))
    return wide(alt.layer(*layers), "Bytes per client and round.", ROW * len(sent))


def seconds(table: Sequence[Row]) -> AnyChart:
    """Return a chart of the seconds of a run, with the standard deviation over seeds."""
    rows: Rows = [
        {
            "run": row.label,
            "seconds": row.seconds,
            "low": max(0.0, row.seconds - (row.seconds_std or 0.0)),
            "high": row.seconds + (row.seconds_std or 0.0),
        }
        for row in table
        if row.seconds is not None
    ]
    base = _rows(rows, [row["run"] for row in rows], table).encode(
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("seconds:Q", format=",.1f")],
    )
    title = "seconds of a run"
    layers = [
        base.mark_bar(height={"band": 0.7}).encode(x=alt.X("seconds:Q", title=title)),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q"),
    ]
    return wide(alt.layer(*layers), "Seconds of a run.", ROW * len(rows))


def _rows(rows: Rows, names: Sequence[str], table: Sequence[Row]) -> alt.Chart:
    """Return a chart with a row for each name, each in the colour of its line, if there are few."""
    chart = alt.Chart({"values": rows}).encode(y=run_rows(names, always=True))
    if len(table) > COLOURS:
        return chart
    coloured: alt.Chart = chart.encode(color=run_colour([row.label for row in table], legend=False))
    return coloured


def _points_axis(field: str) -> alt.X:
    return alt.X(f"{field}:Q", title="difference, points", axis=alt.Axis(tickCount=8))


def _share_axis(field: str) -> alt.X:
    # A nice scale would end at 105% or 110%.
    axis = alt.Axis(format="%", tickCount=6)
    scale = alt.Scale(zero=False, nice=False, padding=10)
    return alt.X(f"{field}:Q", title="accuracy", axis=axis, scale=scale)
