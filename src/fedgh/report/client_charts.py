"""Charts of clients and classes: their accuracies, their samples, and confused classes."""

from collections.abc import Sequence
from statistics import quantiles
from typing import Any

import altair as alt

from fedgh.core.records import ClientInfo
from fedgh.report.charts import PERCENT, ROW, AnyChart, Rows, labels, run_colour, wide
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


def accuracy_by_client(runs: Sequence[NamedRun], *, on_all_classes: bool = False) -> AnyChart:
    """Return a chart of every client's accuracy after the last evaluated round.

    With more than `MAX_ROWS` clients it shows the distributions.
    """
    if max(len(run.clients) for run in runs) > MAX_ROWS:
        return _accuracy_by_network(runs, on_all_classes)
    same = same_clients(runs)
    rows: Rows = []
    for run in runs:
        for client, score in _last_scores(run, on_all_classes):
            name = client_name(client) if same else f"client {client.client}"
            row = {"run": run.label, "client": client.client, "name": name, "accuracy": score}
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
            color=run_colour(runs), yOffset=alt.YOffset("run:N", sort=labels(runs))
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


def accuracy_by_class(
    runs: Sequence[NamedRun], measured: dict[str, Confusion], classes: Sequence[str]
) -> AnyChart:
    """Return a chart of the accuracy on each class; many classes are sorted, the worst first."""
    rows: Rows = []
    for run in runs:
        if run.label in measured:
            rows += [
                {"run": run.label, **row} for row in class_scores(measured[run.label], classes)
            ]
    order = list(classes)
    if len(classes) > MAX_NAMED_CLASSES:
        scores = {row["class"]: row["accuracy"] for row in reversed(rows)}  # of the first run
        order.sort(key=lambda name: scores.get(name, 2.0))  # classes without test samples last
    shown = [run for run in runs if run.label in measured]
    base = alt.Chart({"values": rows}).encode(
        x=_class_axis("class", order, "class", named=len(classes) <= MAX_NAMED_CLASSES),
        y=alt.Y(
            "accuracy:Q",
            title="accuracy",
            axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, 1]),
        ),
        tooltip=["run:N", "class:N", alt.Tooltip("accuracy:Q", format=PERCENT), "tested:Q"],
    )
    if len(shown) > 1:
        chart = base.mark_point(filled=True, size=45, opacity=1).encode(
            color=run_colour(shown), xOffset=alt.XOffset("run:N", sort=labels(shown))
        )
    else:
        chart = base.mark_bar(width={"band": 0.75})
    return wide(chart, "Accuracy of the models on each class.", 220)


def class_scores(measured: Confusion, classes: Sequence[str]) -> Rows:
    """Return the accuracy on each class that has test samples."""
    return [
        {"class": name, "accuracy": row[label] / sum(row), "tested": sum(row)}
        for label, (name, row) in enumerate(zip(classes, measured.counts, strict=True))
        if sum(row)
    ]


def confusion_map(measured: Confusion, classes: Sequence[str]) -> AnyChart:
    """Return the confusion matrix as a heat map of shares of the samples of each true class."""
    rows: Rows = [
        {
            "true": classes[true],
            "predicted": classes[predicted],
            "samples": count,
            "share": count / sum(row),
            "text": f"{100 * count / sum(row):.0f}",
        }
        for true, row in enumerate(measured.counts)
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


def most_confused(measured: Confusion) -> list[tuple[int, int, int, float]]:
    """Return the most frequent mistakes: (true, predicted, samples, share of the true class)."""
    mistakes = [
        (true, predicted, count, count / sum(row))
        for true, row in enumerate(measured.counts)
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


def _accuracy_by_network(runs: Sequence[NamedRun], on_all_classes: bool) -> AnyChart:
    """Return a chart of the quantiles of accuracy over the clients that have the same network."""
    rows: Rows = []
    for run in runs:
        scores: dict[str, list[float]] = {}
        for client, score in _last_scores(run, on_all_classes):
            scores.setdefault(client.extractor, []).append(score)
        for network, accuracies in scores.items():
            cuts = (
                quantiles(accuracies, n=20, method="inclusive")
                if len(accuracies) > 1
                else accuracies * 19
            )
            names = ("p5", "p25", "median", "p75", "p95")
            values = dict(zip(names, (cuts[0], cuts[4], cuts[9], cuts[14], cuts[18]), strict=True))
            rows.append(
                {"run": run.label, "network": network, "clients": len(accuracies), **values}
            )
    networks = list(dict.fromkeys(row["network"] for row in rows))
    base = alt.Chart({"values": rows}).encode(
        y=alt.Y("network:N", title=None, sort=networks, axis=_long_labels()),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("network:N"),
            alt.Tooltip("clients:Q"),
            *(alt.Tooltip(f"{n}:Q", format=PERCENT) for n in ("p5", "p25", "median", "p75", "p95")),
        ],
    )
    if len(runs) > 1:
        offset = alt.YOffset("run:N", sort=labels(runs))
        base = base.encode(yOffset=offset, color=run_colour(runs))
    title = f"accuracy on {_test_data(on_all_classes)}"
    whiskers = base.mark_rule().encode(x=_percent_axis("p5", title), x2="p95:Q")
    boxes = base.mark_bar(size=9, opacity=0.6).encode(x=_percent_axis("p25", title), x2="p75:Q")
    medians = base.mark_tick(thickness=3, size=14).encode(x=_percent_axis("median", title))
    height = len(networks) * max(ROW, 18 * len(runs))
    description = f"Distribution of accuracy on {_test_data(on_all_classes)}, by network."
    return wide(whiskers + boxes + medians, description, height)


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
