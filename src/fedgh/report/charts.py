"""Charts of accuracy and loss over time, and of the costs of runs.

Charts choose no colours: the light or dark theme of the page (assets/theme.json) does. Text from
run folders is untrusted, so it is only used as data, never as a field name or in an expression.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import altair as alt

from fedgh.runs.read import NamedRun

Rows = list[dict[str, Any]]
AnyChart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart

HEIGHT = 260
ROW = 24
"""Height of a bar and the gap below it, in pixels."""

MAX_DOTS = 40
"""Rounds up to which the points of a line are marked; more of them would overlap."""

COLOURS = 10
"""Number of line colours in the theme."""

BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")
PERCENT = ".1%"


def accuracy_over_rounds(runs: Sequence[NamedRun]) -> AnyChart:
    """Return a chart of mean accuracy after each evaluated round; targets are dashed lines."""
    rows = _accuracies(runs)
    lines = _lines(runs, rows, _round_axis(), _percent_axis("accuracy"))
    chart = alt.layer(lines, *_target(runs)) if rows else lines
    return wide(chart, "Mean test accuracy of the clients after each round.")


def mean_over_rounds(groups: Mapping[str, Sequence[NamedRun]]) -> AnyChart:
    """Return a chart with the mean accuracy of each group, in a band of a standard deviation."""
    rows: Rows = []
    for label, runs in groups.items():
        by_round: dict[int, list[float]] = {}
        for run in runs:
            for round in run.evaluated:
                by_round.setdefault(round.round, []).append(round.accuracy or 0.0)
        for number, scores in by_round.items():
            mean, std = fmean(scores), stdev(scores) if len(scores) > 1 else 0.0
            band = {"low": mean - std, "high": mean + std}
            rows.append({"run": label, "round": number, "accuracy": mean, **band})
    base = alt.Chart({"values": rows}).encode(x=_round_axis(), color=colour([*groups]))
    lines = base.mark_line(strokeWidth=2).encode(
        y=_percent_axis("accuracy"),
        strokeDash=dashes([*groups]),
        tooltip=["run:N", "round:Q", alt.Tooltip("accuracy:Q", format=PERCENT)],
    )
    bands = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    return wide(alt.layer(bands, lines), "Mean test accuracy after each round, over seeds.")


def accuracy_over_bytes(runs: Sequence[NamedRun]) -> AnyChart:
    """Return a chart of mean accuracy over the bytes sent up and down until each round."""
    rows = _accuracies(runs)
    unit, size = byte_unit(max((row["bytes"] for row in rows), default=0))
    for row in rows:
        row["sent"] = row["bytes"] / size
    x = alt.X("sent:Q", title=f"sent up and down, {unit}", axis=alt.Axis(grid=False, tickCount=6))
    lines = _lines(runs, rows, x, _percent_axis("accuracy"))
    chart = alt.layer(lines, *_target(runs)) if rows else lines
    return wide(chart, "Mean test accuracy of the clients over the bytes sent until then.")


def loss_over_rounds(runs: Sequence[NamedRun]) -> AnyChart:
    """Return a chart of the mean training loss of each round's participants."""
    rows = [
        {"run": run.label, "round": round.round, "loss": round.train_loss}
        for run in runs
        for round in run.rounds
        if round.train_loss is not None
    ]
    y = alt.Y("loss:Q", title="training loss", scale=alt.Scale(zero=False))
    tooltip = [*_run_tooltip(runs), alt.Tooltip("round:Q"), alt.Tooltip("loss:Q", format=".4f")]
    return wide(_lines(runs, rows, _round_axis(), y, tooltip), "Training loss of each round.")


def bytes_by_direction(runs: Sequence[NamedRun]) -> AnyChart:
    """Return a chart of the bytes of each run: uploads, downloads, and overhead of messages."""
    sums = {
        run.label: {
            "up": sum(round.bytes_up for round in run.rounds),
            "down": sum(round.bytes_down for round in run.rounds),
            "overhead": sum(
                max(0, round.wire_bytes - round.bytes_up - round.bytes_down) for round in run.rounds
            ),
        }
        for run in runs
    }
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
            y=_run_rows(runs),
            color=alt.Color("kind:N", title=None, sort=kinds, legend=alt.Legend(orient="top")),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("kind:N", title="direction"),
                alt.Tooltip("bytes:Q", format=","),
            ],
        )
    )
    return wide(chart, "Bytes sent up and down.", ROW * len(runs))


def seconds_by_phase(runs: Sequence[NamedRun]) -> AnyChart:
    """Return a chart of the seconds in each phase of the clients, in the server, and in total."""
    rows: Rows = []
    for run in runs:
        sums: dict[str, float] = {}
        for round in run.rounds:
            for phase, seconds in round.seconds.items():
                sums[phase] = sums.get(phase, 0.0) + seconds
        wall = sums.pop("total", 0.0)
        server = sums.pop("server", 0.0)
        named = {f"clients: {phase}": value for phase, value in sums.items()}
        named |= {"server": server, "wall clock": wall}
        rows += [{"run": run.label, "phase": name, "seconds": s} for name, s in named.items()]
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    phases.sort(key=lambda phase: (phase == "wall clock", phase == "server"))
    bars = alt.Chart({"values": rows}).encode(
        x=alt.X("seconds:Q", title="seconds over all rounds", axis=alt.Axis(tickCount=6)),
        y=alt.Y("phase:N", title=None, sort=phases),
        tooltip=[
            *_run_tooltip(runs),
            alt.Tooltip("phase:N"),
            alt.Tooltip("seconds:Q", format=",.2f"),
        ],
    )
    if len(runs) > 1:
        bars = bars.encode(yOffset=alt.YOffset("run:N", sort=labels(runs)), color=run_colour(runs))
    height = len(phases) * max(ROW, 10 * len(runs))
    return wide(bars.mark_bar(), "Seconds by phase.", height)


def run_colour(runs: Sequence[NamedRun]) -> alt.Color:
    """Return a colour for each run, with a legend if there are several."""
    return colour(labels(runs))


def colour(names: Sequence[str]) -> alt.Color:
    """Return a colour for each of these values of the field `run`."""
    return alt.Color(
        "run:N", title=None, scale=alt.Scale(domain=list(names)), legend=_legend(names)
    )


def dashes(names: Sequence[str]) -> alt.StrokeDash:
    """Return another dash pattern for every ten lines, because colours repeat after ten."""
    kinds = [[1, 0], [6, 3], [2, 2]]
    chosen = [kinds[number // COLOURS % len(kinds)] for number in range(len(names))]
    scale = alt.Scale(domain=list(names), range=chosen)
    return alt.StrokeDash("run:N", title=None, scale=scale, legend=_legend(names))


def _legend(names: Sequence[str]) -> alt.Legend | None:
    columns = max(1, min(4, 50 // (max(map(len, names)) + 4)))  # as many as fit into half a page
    legend = alt.Legend(orient="top", columns=columns, labelLimit=300, symbolLimit=0)
    return legend if len(names) > 1 else None


def labels(runs: Sequence[NamedRun]) -> list[str]:
    """Return the labels of the runs, in order."""
    return [run.label for run in runs]


def wide(chart: Any, description: str, height: int = HEIGHT) -> AnyChart:
    """Return the chart as wide as its container; screen readers read the description."""
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


def _accuracies(runs: Sequence[NamedRun]) -> Rows:
    return [
        {
            "run": run.label,
            "round": round.round,
            "accuracy": round.accuracy,
            "bytes": round.bytes_total,
        }
        for run in runs
        for round in run.evaluated
    ]


def _lines(
    runs: Sequence[NamedRun],
    rows: Rows,
    x: alt.X,
    y: alt.Y,
    tooltip: list[alt.Tooltip] | None = None,
) -> alt.Chart:
    few = max((len(run.rounds) for run in runs), default=0) <= MAX_DOTS
    chosen = alt.selection_point(fields=["run"], bind="legend")
    lines = (
        alt.Chart({"values": rows})
        .mark_line(point=few, strokeWidth=2)
        .encode(
            x=x,
            y=y,
            color=run_colour(runs),
            strokeDash=dashes(labels(runs)),
            opacity=alt.condition(chosen, alt.value(1), alt.value(0.15)),
            tooltip=tooltip
            or [
                *_run_tooltip(runs),
                alt.Tooltip("round:Q"),
                alt.Tooltip("accuracy:Q", format=PERCENT),
                alt.Tooltip("bytes:Q", title="bytes sent", format=","),
            ],
        )
    )
    selectable: alt.Chart = lines.add_params(chosen)
    return selectable


def _target(runs: Sequence[NamedRun]) -> list[alt.Chart]:
    targets = sorted({run.settings.federation.target for run in runs} - {None}, key=str)
    rows: Rows = [{"accuracy": target} for target in targets]
    rule = alt.Chart({"values": rows}).mark_rule(strokeDash=[4, 4], opacity=0.6)
    tooltip = alt.Tooltip("accuracy:Q", title="target", format=PERCENT)
    return [rule.encode(y="accuracy:Q", tooltip=tooltip)] if rows else []


def _round_axis() -> alt.X:
    return alt.X(
        "round:Q",
        title="round",
        axis=alt.Axis(tickMinStep=1, format="d", grid=False),
        scale=alt.Scale(zero=False, nice=False),
    )


def _percent_axis(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", title=field, axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))


def _run_rows(runs: Sequence[NamedRun]) -> alt.Y:
    axis = alt.Axis(labelLimit=260, labels=len(runs) > 1, ticks=False, domain=False)
    return alt.Y("run:N", title=None, sort=labels(runs), axis=axis)


def _run_tooltip(runs: Sequence[NamedRun]) -> list[alt.Tooltip]:
    return [alt.Tooltip("run:N")] if len(runs) > 1 else []
