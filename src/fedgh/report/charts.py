"""Charts of accuracy and loss over time, and of the costs of runs.

Charts show groups of runs that differ only in the seed: a group is one line, the mean over its
seeds, in a band of a standard deviation. More groups than there are colours are shown in a panel
each.

Charts choose no colours: the light or dark theme of the page (assets/theme.json) does. Text from
run folders is untrusted, so it is only used as data, never as a field name or in an expression.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import altair as alt

from fedgh.core.records import Round
from fedgh.report.groups import Groups, has_several_seeds
from fedgh.runs.read import NamedRun

Rows = list[dict[str, Any]]
AnyChart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart

HEIGHT = 260
ROW = 24
"""Height of a bar and the gap below it, in pixels."""

MAX_DOTS = 40
"""Rounds up to which the points of a line are marked; more of them would overlap."""

COLOURS = 10
"""Number of line colours in the theme; more groups have a panel each."""

PANEL_WIDTH, PANEL_HEIGHT, PANEL_COLUMNS = 210, 110, 4
"""Size of a panel in pixels, and the number of panels in a row."""

FEW_BANDS = 3
"""Number of bands up to which they are not paler; more of them overlap."""

MAX_TICKS = 12
"""Rounds up to which every round has a tick."""

BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")
PERCENT = ".1%"

Value = Callable[[Round], float | None]
"""Function of a round that returns one of its numbers; None if it was not measured."""

Axis = Callable[[str], alt.Y]
"""Function of a field that returns its vertical axis."""

WALL_CLOCK = "wall clock"


def accuracy_over_rounds(groups: Groups, metric: str = "accuracy") -> AnyChart:
    """Return a chart of mean accuracy after each evaluated round; targets are dashed lines."""
    rows = _curves(groups, "accuracy", lambda round: round.scores.get(metric))
    targets = _target(groups) if metric == "accuracy" else []
    chart = _lines(groups, rows, round_axis(rows), "accuracy", _percent_axis, targets)
    return wide(chart, "Mean accuracy of the clients after each round.")


def accuracy_over_bytes(groups: Groups) -> AnyChart:
    """Return a chart of mean accuracy over the bytes sent up and down until each round."""
    rows = _curves(groups, "accuracy", lambda round: round.accuracy)
    unit, size = byte_unit(max((row["bytes"] for row in rows), default=0))
    for row in rows:
        row["sent"] = row["bytes"] / size
    x = alt.X("sent:Q", title=f"sent up and down, {unit}", axis=alt.Axis(grid=False, tickCount=6))
    chart = _lines(groups, rows, x, "accuracy", _percent_axis, _target(groups))
    return wide(chart, "Mean accuracy of the clients over the bytes sent until then.")


def loss_over_rounds(groups: Groups) -> AnyChart:
    """Return a chart of the mean training loss of each round's participants."""
    rows = _curves(groups, "loss", lambda round: round.train_loss)
    chart = _lines(groups, rows, round_axis(rows), "loss", _loss_axis)
    return wide(chart, "Training loss of each round.")


def bytes_by_direction(groups: Groups) -> AnyChart:
    """Return a chart of the bytes of a run: uploads, downloads, and overhead of messages."""
    sums = {label: _bytes_of(runs) for label, runs in groups.items()}
    unit, size = byte_unit(max((sum(parts.values()) for parts in sums.values()), default=0))
    kinds = [kind for kind in ("up", "down", "overhead") if any(s[kind] for s in sums.values())]
    rows: Rows = [
        {"run": run, "kind": kind, "order": order, "sent": parts[kind] / size, "bytes": parts[kind]}
        for run, parts in sums.items()
        for order, kind in enumerate(kinds)
    ]
    chart = (
        alt.Chart({"values": rows})
        .mark_bar(height={"band": 0.7})
        .encode(
            x=alt.X("sent:Q", title=f"sent over all rounds, {unit}", axis=alt.Axis(tickCount=6)),
            y=run_rows(list(groups)),
            color=alt.Color("kind:N", title=None, sort=kinds, legend=alt.Legend(orient="top")),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("kind:N", title="direction"),
                alt.Tooltip("bytes:Q", format=","),
            ],
        )
    )
    return wide(chart, "Bytes sent up and down.", ROW * len(groups))


def seconds_by_phase(groups: Groups) -> AnyChart:
    """Return a chart of the seconds in each phase of the clients, in the server, and in total.

    With more groups than colours, a group is one bar of all phases without the total.
    """
    rows: Rows = [
        {"run": label, "phase": phase, "seconds": seconds}
        for label, runs in groups.items()
        for phase, seconds in _seconds_of(runs).items()
    ]
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    phases.sort(key=lambda phase: (phase == WALL_CLOCK, phase == "server"))
    tooltip = [
        *_run_tooltip(groups),
        alt.Tooltip("phase:N"),
        alt.Tooltip("seconds:Q", format=",.2f"),
    ]
    x = alt.X("seconds:Q", title="seconds over all rounds", axis=alt.Axis(tickCount=6))
    if len(groups) > COLOURS:
        phases.remove(WALL_CLOCK)
        rows = [row for row in rows if row["phase"] != WALL_CLOCK]
        legend = alt.Legend(orient="top", columns=4)
        bars = alt.Chart({"values": rows}).encode(
            x=x,
            y=run_rows(list(groups)),
            color=alt.Color("phase:N", title=None, sort=phases, legend=legend),
            tooltip=tooltip,
        )
        return wide(bars.mark_bar(height={"band": 0.7}), "Seconds by phase.", ROW * len(groups))
    bars = alt.Chart({"values": rows}).encode(
        x=x, y=alt.Y("phase:N", title=None, sort=phases), tooltip=tooltip
    )
    if len(groups) > 1:
        offset = alt.YOffset("run:N", sort=list(groups))
        bars = bars.encode(yOffset=offset, color=run_colour(list(groups)))
    height = len(phases) * max(ROW, 10 * len(groups))
    return wide(bars.mark_bar(), "Seconds by phase.", height)


def run_colour(names: Sequence[str], legend: bool = True) -> alt.Color:
    """Return a colour for each of these values of the field `run`; one value has no legend."""
    columns = max(1, min(4, 50 // (max(map(len, names)) + 4)))  # as many as fit into half a page
    shown = alt.Legend(
        orient="top", columns=columns, labelLimit=300, symbolLimit=0, symbolOpacity=1
    )
    return alt.Color(
        "run:N",
        title=None,
        scale=alt.Scale(domain=list(names)),
        legend=shown if legend and len(names) > 1 else None,
    )


def run_rows(names: Sequence[str], always: bool = False) -> alt.Y:
    """Return an axis with a row for each of these values of the field `run`.

    A single row has its label only with `always`.
    """
    axis = alt.Axis(labelLimit=260, labels=always or len(names) > 1, ticks=False, domain=False)
    return alt.Y("run:N", title=None, sort=list(names), axis=axis)


def round_axis(rows: Rows, title: str = "round") -> alt.X:
    """Return an axis of whole rounds; if there are few, each has a tick."""
    numbers = sorted({row["round"] for row in rows})
    ticks = numbers if len(numbers) <= MAX_TICKS else alt.Undefined
    # A single round would be at the left edge.
    padding = 20 if len(numbers) == 1 else alt.Undefined
    return alt.X(
        "round:Q",
        title=title,
        axis=alt.Axis(tickMinStep=1, format="d", grid=False, values=ticks),
        scale=alt.Scale(zero=False, nice=False, padding=padding),
    )


def wide(chart: Any, description: str, height: int = HEIGHT) -> AnyChart:
    """Return the chart as wide as its container; screen readers read the description.

    Panels keep their size.
    """
    if isinstance(chart, alt.FacetChart):
        panels: AnyChart = chart.properties(description=description)
        return panels
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    resized: AnyChart = chart.properties(
        width="container", height=height, autosize=fit, description=description
    )
    return resized


def byte_unit(largest: float) -> tuple[str, int]:
    """Return the largest unit not above this number of bytes, and its size; 1 KB = 1024 B."""
    power = 0
    while largest >= 1024 and power < len(BYTE_UNITS) - 1:
        largest /= 1024
        power += 1
    return BYTE_UNITS[power], 1024**power


def _curves(groups: Groups, field: str, value: Value) -> Rows:
    """Return, for each group and round, the mean over seeds, its band, and the bytes until then.

    Only rounds that all runs of the group have are shown: the mean of some of them would jump.
    """
    rows: Rows = []
    for label, runs in groups.items():
        by_round: dict[int, list[tuple[float, int]]] = {}
        for run in runs:
            for round in run.rounds:
                known = value(round)
                if known is not None:
                    by_round.setdefault(round.round, []).append((known, round.bytes_total))
        for number, found in by_round.items():
            if len(found) < len(runs):
                continue
            values = [known for known, _ in found]
            mean = fmean(values)
            sent = fmean(total for _, total in found)
            row: dict[str, Any] = {"run": label, "round": number, field: mean, "bytes": sent}
            if len(runs) > 1:
                row |= {"low": mean - stdev(values), "high": mean + stdev(values)}
            if field == "accuracy" and "high" in row:
                row["high"] = min(1.0, row["high"])  # an axis beyond 100% would puzzle readers
            rows.append(row)
    return rows


def _lines(
    groups: Groups,
    rows: Rows,
    x: alt.X,
    field: str,
    y: Axis,
    targets: Sequence[alt.Chart] = (),
) -> Any:
    """Return a line for each group in one chart, or in a panel each if there are many."""
    tooltip = [
        *_run_tooltip(groups),
        alt.Tooltip("round:Q"),
        alt.Tooltip(f"{field}:Q", format=".4f" if field == "loss" else PERCENT),
        alt.Tooltip("bytes:Q", title="bytes sent", format=",.0f"),
    ]
    dots = len({row["round"] for row in rows}) <= MAX_DOTS
    many = len(groups) > COLOURS
    base = alt.Chart() if many else alt.Chart({"values": rows})
    base = base.encode(x=x) if many else base.encode(x=x, color=run_colour(list(groups)))
    point = alt.OverlayMarkDef(size=12 if many else 30) if dots else False
    lines = base.mark_line(point=point, strokeWidth=2).encode(y=y(field), tooltip=tooltip)
    bands = base.mark_area(opacity=0.15).encode(y=y("low"), y2="high:Q")
    bands = bands.transform_filter("isValid(datum.low)")
    if many:
        layers = [bands, lines] if has_several_seeds(groups) else [lines]
        return _panels(layers, rows, list(groups))
    chosen = alt.selection_point(fields=["run"], bind="legend")
    lines = lines.encode(opacity=alt.condition(chosen, alt.value(1), alt.value(0.15)))
    pale = 0.15 if len(groups) <= FEW_BANDS else 0.08
    bands = bands.encode(opacity=alt.condition(chosen, alt.value(pale), alt.value(0)))
    below = [bands] if has_several_seeds(groups) else []
    return alt.layer(*below, lines.add_params(chosen), *(targets if rows else ()))


def _panels(layers: Sequence[alt.Chart], rows: Rows, names: Sequence[str]) -> alt.FacetChart:
    header = alt.Header(labelLimit=PANEL_WIDTH, labelFontSize=11, labelPadding=2)
    panels: alt.FacetChart = (
        alt.layer(*layers, data={"values": rows})
        .properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
        .facet(
            facet=alt.Facet("run:N", title=None, sort=list(names), header=header),
            columns=PANEL_COLUMNS,
            spacing={"row": 14, "column": 14},
        )
    )
    return panels


def _target(groups: Groups) -> list[alt.Chart]:
    runs = [run for of_label in groups.values() for run in of_label]
    targets = sorted({run.settings.federation.target for run in runs} - {None}, key=str)
    rows: Rows = [{"accuracy": target} for target in targets]
    rule = alt.Chart({"values": rows}).mark_rule(strokeDash=[4, 4], opacity=0.6)
    tooltip = alt.Tooltip("accuracy:Q", title="target", format=PERCENT)
    return [rule.encode(y="accuracy:Q", tooltip=tooltip)] if rows else []


def _percent_axis(field: str) -> alt.Y:
    scale = alt.Scale(zero=False)
    return alt.Y(f"{field}:Q", title="accuracy", axis=alt.Axis(format="%"), scale=scale)


def _loss_axis(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", title="training loss", scale=alt.Scale(zero=False))


def _bytes_of(runs: Sequence[NamedRun]) -> dict[str, float]:
    """Return the bytes of a run by kind, the mean over runs."""
    kinds: dict[str, Callable[[Round], int]] = {
        "up": lambda round: round.bytes_up,
        "down": lambda round: round.bytes_down,
        "overhead": lambda round: max(0, round.wire_bytes - round.bytes_up - round.bytes_down),
    }
    return {
        kind: fmean(sum(map(count, run.rounds)) for run in runs) for kind, count in kinds.items()
    }


def _seconds_of(runs: Sequence[NamedRun]) -> dict[str, float]:
    """Return the seconds of a run by phase, the mean over runs; the total is the wall clock."""
    sums: dict[str, float] = {}
    for run in runs:
        for round in run.rounds:
            for phase, seconds in round.seconds.items():
                sums[phase] = sums.get(phase, 0.0) + seconds / len(runs)
    total = {"server": sums.pop("server", 0.0), WALL_CLOCK: sums.pop("total", 0.0)}
    return {**{f"clients: {phase}": seconds for phase, seconds in sums.items()}, **total}


def _run_tooltip(groups: Groups) -> list[alt.Tooltip]:
    return [alt.Tooltip("run:N")] if len(groups) > 1 else []
