"""Charts of clients and classes: their accuracies, their samples, and confused classes."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import quantiles
from typing import Any

import altair as alt

from fedgh.core.records import ClientInfo
from fedgh.report.charts import (
    COLOURS,
    PERCENT,
    ROW,
    AnyChart,
    Rows,
    run_colour,
    run_rows,
    wide,
)
from fedgh.report.groups import Groups, has_several_seeds
from fedgh.runs.read import NamedRun
from fedgh.trained.confusion import Confusion

MAX_ROWS = 60
"""Maximum number of clients that are shown one by one; more are shown as distributions."""

MAX_MAPPED = 200
"""Maximum number of clients in a heat map of clients and classes."""

MAX_CELLS = 10_000
"""Maximum number of cells in a heat map of clients and classes."""

FEW_CLASSES = 12
"""Maximum number of classes for which a confusion matrix shows all names and numbers."""

MAX_NAMED_CLASSES = 30
"""Maximum number of classes that an axis names; more classes are sorted by accuracy."""

MAX_NAMES = 4
"""Maximum number of classes that the label of a client lists."""

MAX_MISTAKES = 10
"""Maximum number of rows in the table of mistakes."""

CUTS = {"p5": 0, "p25": 4, "median": 9, "p75": 14, "p95": 18}
"""Quantiles of a distribution, and their places among nineteen cuts into twenty parts."""

Counts = Sequence[Sequence[int]]
"""The number of samples of each true class [row] that are predicted as each class [column]."""


def accuracy_by_client(groups: Groups, *, on_all_classes: bool = False) -> AnyChart:
    """Return a chart of every client's accuracy after the last evaluated round.

    It shows distributions by network with more than `MAX_ROWS` clients, and by group if a group
    has several seeds, in which clients differ, or if there are more groups than colours.
    """
    if has_several_seeds(groups) or len(groups) > COLOURS:
        return accuracy_by_group(groups, on_all_classes=on_all_classes)
    runs = [run for (run,) in groups.values()]
    if max(len(run.clients) for run in runs) > MAX_ROWS:
        return _accuracy_by_network(groups, on_all_classes)
    same = same_clients(runs)
    rows: Rows = []
    for label, run in zip(groups, runs, strict=True):
        for client, score in _last_scores(run, on_all_classes):
            name = client_name(client) if same else f"client {client.client}"
            row = {"run": label, "client": client.client, "name": name, "accuracy": score}
            rows.append(row | {"text": f"{100 * score:.1f}%"})
    rows.sort(key=lambda row: int(row["client"]))
    names = list(dict.fromkeys(row["name"] for row in rows))
    base = alt.Chart({"values": rows}).encode(
        x=_percent_axis("accuracy", f"accuracy on {_test_data(on_all_classes)}"),
        y=alt.Y("name:N", title=None, sort=names, axis=_long_labels()),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("name:N", title="client"),
            alt.Tooltip("accuracy:Q", format=PERCENT),
        ],
    )
    if len(runs) > 1:
        chart: Any = base.mark_point(filled=True, size=45, opacity=1).encode(
            color=run_colour(list(groups)), yOffset=alt.YOffset("run:N", sort=list(groups))
        )
    else:
        number = base.encode(text="text:N")
        inside = number.transform_filter("datum.accuracy > 0.1")
        beside = number.transform_filter("datum.accuracy <= 0.1")
        chart = alt.layer(
            base.mark_bar(height={"band": 0.75}),
            inside.mark_text(align="right", dx=-5, style="on-bar"),
            beside.mark_text(align="left", dx=5, style="on-pale"),
        )
    height = len(names) * max(ROW, 8 * len(runs))
    description = f"Accuracy of every client on {_test_data(on_all_classes)}."
    return wide(chart, description, height)


def accuracy_by_group(groups: Groups, *, on_all_classes: bool = False) -> AnyChart:
    """Return a chart of the distribution of accuracy over the clients of all seeds of a group.

    Few clients are also shown as points.
    """
    scores = {
        label: [score for run in runs for _, score in _last_scores(run, on_all_classes)]
        for label, runs in groups.items()
    }
    rows = [{"run": label, **_cuts(found)} for label, found in scores.items() if found]
    few = max(map(len, scores.values())) <= MAX_ROWS
    points = [
        {"run": label, "accuracy": score}
        for label, found in scores.items()
        for score in (found if few else [])
    ]
    names = list(groups)
    y = run_rows(names)
    colour = run_colour(names, legend=False) if len(names) <= COLOURS else alt.Undefined
    title = f"accuracy on {_test_data(on_all_classes)}"
    tooltip = [alt.Tooltip("run:N"), *_cut_tooltips()]
    base = alt.Chart({"values": rows}).encode(y=y, color=colour, tooltip=tooltip)
    each = alt.Chart({"values": points}).mark_point(size=14, opacity=0.5)
    each = each.encode(
        x=_percent_axis("accuracy", title),
        y=y,
        color=colour,
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("accuracy:Q", format=PERCENT)],
    )
    layers = [*_boxes(base, title), *([each] if points else [])]
    description = f"Distribution of accuracy on {_test_data(on_all_classes)} over the clients."
    return wide(alt.layer(*layers), description, ROW * len(groups))


def samples_by_class(run: NamedRun) -> AnyChart:
    """Return a heat map of each client's samples per class; there is no cell for 0 samples."""
    classes = run.identity.classes
    shown = run.clients[: shown_clients(run)]
    rows: Rows = [
        {"client": client.client, "class": name, "samples": count, "network": client.extractor}
        for client in shown
        for name, count in client.classes.items()
    ]
    height = 18 * len(shown) if len(shown) <= 20 else max(360, 3 * len(shown))
    chart = (
        alt.Chart({"values": rows})
        .mark_rect()
        .encode(
            x=_class_axis("class", classes, "class"),
            y=alt.Y("client:O", title="client", axis=alt.Axis(labelOverlap=True, ticks=False)),
            color=alt.Color(
                "samples:Q",
                title="samples",
                scale=alt.Scale(domainMin=0),
                legend=alt.Legend(orient="right", gradientLength=120),
            ),
            tooltip=["client:O", "network:N", "class:N", "samples:Q"],
        )
    )
    return wide(chart, "Samples of each class that each client holds.", height)


def shown_clients(run: NamedRun) -> int:
    """Return the number of clients that a heat map of clients and classes shows."""
    rows = max(10, MAX_CELLS // max(1, len(run.identity.classes)))
    return min(len(run.clients), MAX_MAPPED, rows)


def accuracy_by_class(measured: Mapping[str, Counts], classes: Sequence[str]) -> AnyChart:
    """Return a chart of the accuracy on each class; many classes are sorted, the worst first."""
    rows: Rows = [
        {"run": label, **row}
        for label, counts in measured.items()
        for row in class_scores(counts, classes)
    ]
    order = list(classes)
    if len(classes) > MAX_NAMED_CLASSES:
        scores = {row["class"]: row["accuracy"] for row in reversed(rows)}  # of the first run
        order.sort(key=lambda name: scores.get(name, 2.0))  # classes without test samples last
    axis = _class_axis("class", order, "class", named=len(classes) <= MAX_NAMED_CLASSES)
    tooltip: list[str | alt.Tooltip] = [
        "run:N",
        "class:N",
        alt.Tooltip("accuracy:Q", format=PERCENT),
        "tested:Q",
    ]
    if len(measured) > COLOURS:
        legend = alt.Legend(format="%", gradientLength=120)
        colour = alt.Color("accuracy:Q", scale=alt.Scale(domain=[0, 1]), legend=legend)
        map_ = alt.Chart({"values": rows}).mark_rect()
        map_ = map_.encode(x=axis, y=run_rows(list(measured)), color=colour, tooltip=tooltip)
        return wide(map_, "Accuracy of the models on each class.", ROW * len(measured))
    base = alt.Chart({"values": rows}).encode(
        x=axis,
        y=alt.Y(
            "accuracy:Q",
            title="accuracy",
            axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, 1]),
        ),
        tooltip=tooltip,
    )
    if len(measured) > 1:
        offset = alt.XOffset("run:N", sort=list(measured))
        points = base.mark_point(filled=True, size=45, opacity=1)
        chart = points.encode(color=run_colour(list(measured)), xOffset=offset)
    else:
        chart = base.mark_bar(width={"band": 0.75})
    return wide(chart, "Accuracy of the models on each class.", 220)


def pooled(found: Iterable[Confusion]) -> Counts:
    """Return the sum of confusion matrices of the same classes."""
    matrices = [confusion.counts for confusion in found]
    return [
        [sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)
    ]


def class_scores(counts: Counts, classes: Sequence[str]) -> Rows:
    """Return the accuracy on each class that has test samples."""
    return [
        {"class": name, "accuracy": row[label] / sum(row), "tested": sum(row)}
        for label, (name, row) in enumerate(zip(classes, counts, strict=True))
        if sum(row)
    ]


def confusion_map(counts: Counts, classes: Sequence[str]) -> AnyChart:
    """Return the confusion matrix as a heat map of shares of the samples of each true class."""
    rows: Rows = [
        {
            "true": classes[true],
            "predicted": classes[predicted],
            "samples": count,
            "share": count / sum(row),
            "text": f"{100 * count / sum(row):.0f}",
        }
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count
    ]
    few = len(classes) <= FEW_CLASSES
    base = alt.Chart({"values": rows}).encode(
        x=_class_axis("predicted", classes, "predicted class"),
        y=alt.Y(
            "true:N",
            title="true class",
            sort=list(classes),
            scale=alt.Scale(domain=list(classes)),
            axis=alt.Axis(labelOverlap=True, labelLimit=120, ticks=False),
        ),
        tooltip=["true:N", "predicted:N", "samples:Q", alt.Tooltip("share:Q", format=PERCENT)],
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "share:Q",
            title="share",
            scale=alt.Scale(domain=[0, 1]),
            legend=alt.Legend(format="%", gradientLength=120),
        )
    )
    chart: Any = cells
    if few:
        pale = base.transform_filter("datum.share <= 0.5").mark_text(style="on-pale")
        dark = base.transform_filter("datum.share > 0.5").mark_text(style="on-strong")
        chart = cells + pale.encode(text="text:N") + dark.encode(text="text:N")
    side = min(520, max(200, 34 * len(classes)))
    description = "Confusion matrix: predicted classes of the samples of each true class."
    sized: AnyChart = chart.properties(width=side, height=side, description=description)
    return sized


def most_confused(counts: Counts) -> list[tuple[int, int, int, float]]:
    """Return the most frequent mistakes: (true, predicted, samples, share of the true class)."""
    mistakes = [
        (true, predicted, count, count / sum(row))
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    return sorted(mistakes, key=lambda mistake: -mistake[2])[:MAX_MISTAKES]


def same_clients(runs: Sequence[NamedRun]) -> bool:
    """Return true if clients with the same number are the same client in all runs."""
    return all(run.clients == runs[0].clients for run in runs)


def client_name(client: ClientInfo) -> str:
    """Return a label of a client for an axis: its name or number, network and some classes."""
    names = list(client.classes)
    more = f" … ({len(names)})" if len(names) > MAX_NAMES else ""
    classes = ", ".join(names[:MAX_NAMES]) + more
    return " · ".join(filter(None, (client.called, client.extractor, classes)))


def _test_data(on_all_classes: bool) -> str:
    return "test data of all classes" if on_all_classes else "the client's own test data"


def _accuracy_by_network(groups: Groups, on_all_classes: bool) -> AnyChart:
    """Return a chart of the quantiles of accuracy over the clients that have the same network."""
    rows: Rows = []
    for label, runs in groups.items():
        scores: dict[str, list[float]] = {}
        for run in runs:
            for client, score in _last_scores(run, on_all_classes):
                scores.setdefault(client.extractor, []).append(score)
        rows += [
            {"run": label, "network": network, **_cuts(found)} for network, found in scores.items()
        ]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    base = alt.Chart({"values": rows}).encode(
        y=alt.Y("network:N", title=None, sort=networks, axis=_long_labels()),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("network:N"), *_cut_tooltips()],
    )
    if len(groups) > 1:
        offset = alt.YOffset("run:N", sort=list(groups))
        base = base.encode(yOffset=offset, color=run_colour(list(groups)))
    boxes = _boxes(base, f"accuracy on {_test_data(on_all_classes)}")
    height = len(networks) * max(ROW, 18 * len(groups))
    description = f"Distribution of accuracy on {_test_data(on_all_classes)}, by network."
    return wide(alt.layer(*boxes), description, height)


def _cuts(scores: Sequence[float]) -> dict[str, float]:
    """Return the quantiles of scores, and their number as `clients`."""
    cuts = quantiles(scores, n=20, method="inclusive") if len(scores) > 1 else list(scores) * 19
    return {"clients": len(scores)} | {name: cuts[place] for name, place in CUTS.items()}


def _cut_tooltips() -> list[alt.Tooltip]:
    return [alt.Tooltip("clients:Q"), *(alt.Tooltip(f"{name}:Q", format=PERCENT) for name in CUTS)]


def _boxes(base: alt.Chart, title: str) -> list[alt.Chart]:
    """Return lines, bars and ticks for the quantiles in the data of a chart."""
    return [
        base.mark_rule().encode(x=_percent_axis("p5", title), x2="p95:Q"),
        base.mark_bar(size=9, opacity=0.6).encode(x=_percent_axis("p25", title), x2="p75:Q"),
        base.mark_tick(thickness=3, size=14).encode(x=_percent_axis("median", title)),
    ]


def _last_scores(run: NamedRun, on_all_classes: bool) -> list[tuple[ClientInfo, float]]:
    """Return each evaluated client with its last accuracy."""
    scores = run.global_accuracies if on_all_classes else run.accuracies
    return [(c, scores[number]) for number, c in enumerate(run.clients) if number in scores]


def _percent_axis(field: str, title: str) -> alt.X:
    return alt.X(
        f"{field}:Q", title=title, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
    )


def _class_axis(field: str, names: Sequence[str], title: str, named: bool = True) -> alt.X:
    axis = alt.Axis(
        labelOverlap=len(names) > FEW_CLASSES,
        labelLimit=90,
        labelAngle=-45 if max(map(len, names), default=0) > 2 else 0,
        labels=named,
        ticks=False,
        grid=False,
    )
    names = list(names)
    return alt.X(f"{field}:N", title=title, sort=names, scale=alt.Scale(domain=names), axis=axis)


def _long_labels() -> alt.Axis:
    return alt.Axis(labelLimit=280, ticks=False, domain=False)
