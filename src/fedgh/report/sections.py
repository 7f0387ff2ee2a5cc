"""Sections that the page of runs and the page of a sweep share.

Runs that differ only in the seed are shown as one group: one line, one distribution, one bar.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from fedgh.core.records import Round
from fedgh.formats import human_bytes, notes_of
from fedgh.report import charts, client_charts
from fedgh.report.groups import Groups, has_several_seeds
from fedgh.report.page import Cell, Figure, Fold, Section, Table, Value
from fedgh.runs.read import NamedRun

MAX_PROBLEMS = 200


def problems(runs: Sequence[NamedRun]) -> Section | None:
    """Return the section about failed clients and rejected uploads; None if there are none."""
    rows: list[list[Value]] = [
        [run.label, round.round, *problem]
        for run in runs
        for round in run.rounds
        for problem in _problems_of(round)
    ]
    if not rows:
        return None
    text = (
        "A client that failed keeps its state from before the round; the server did not use a "
        "rejected upload."
    )
    if len(rows) > MAX_PROBLEMS:
        text += f" The table shows the first {MAX_PROBLEMS} of {len(rows)} problems."
    table = Table(["run", "round", "client", "problem", "reason"], rows[:MAX_PROBLEMS])
    return Section("problems", "Failed clients and rejected uploads", text, [table])


def _problems_of(round: Round) -> Iterator[list[Value]]:
    for problem in round.failed:
        yield [problem.client, "failed", problem.reason]
    if round.discarded is not None:
        yield ["server", "round discarded", round.discarded]
    for problem in round.rejected:
        excluded = "; client excluded" if problem.client in round.excluded else ""
        yield [problem.client, "upload rejected", problem.reason + excluded]
    for dropped in round.dropped:
        labels = ", ".join(map(str, dropped.classes))
        reason = f"classes {labels} differ from those of other clients"
        yield [dropped.client, "class means dropped", reason]


def learning(groups: Groups) -> Section:
    """Return the section with accuracy and loss over rounds and bytes."""
    runs = runs_of(groups)
    many = len(groups) > charts.COLOURS  # a panel each, which takes the space of other charts
    parts: list[Figure] = []
    if any(run.evaluated for run in runs):
        caption = "Mean accuracy of the clients on their own test data. " + _lines_text(groups)
        chart = charts.accuracy_over_rounds(groups)
        parts.append(Figure("accuracy-over-rounds", caption, chart, whole_width=True))
        if any(run.result.bytes_total for run in runs) and not many:
            caption = "The same accuracy over the bytes that all clients have sent and received."
            parts.append(Figure("accuracy-over-bytes", caption, charts.accuracy_over_bytes(groups)))
    if any(round.train_loss is not None for run in runs for round in run.rounds) and not many:
        caption = "Mean training loss of each round's participants, over all batches of the round."
        parts.append(Figure("loss-over-rounds", caption, charts.loss_over_rounds(groups)))
    text = "" if parts else "No round is complete yet."
    return Section("learning", "Learning", text, parts)


def _lines_text(groups: Groups) -> str:
    """Return the meaning of bands and dashed lines."""
    targets = {run.settings.federation.target for run in runs_of(groups)} - {None}
    lines = "line is the target" if len(targets) == 1 else "lines are the targets"
    many = len(groups) > charts.COLOURS  # panels have no dashed lines
    bands = "Bands extend one standard deviation over seeds up and down. "
    text = bands if has_several_seeds(groups) else ""
    return text + (f"The dashed {lines}." if targets and not many else "")


def clients(groups: Groups) -> Section | None:
    """Return the section with the accuracy of clients; None before the first evaluation."""
    shown = filtered(groups, lambda run: bool(run.evaluated))
    if not shown:
        return None
    evaluated = runs_of(shown)
    chart = client_charts.accuracy_by_client(shown)
    parts = [Figure("accuracy-by-client", _clients_caption(shown), chart)]
    with_global = filtered(shown, lambda run: bool(run.global_accuracies))
    if with_global:
        caption = (
            "The same on test samples of all clients, with the same number of samples per class."
        )
        chart = client_charts.accuracy_by_client(with_global, on_all_classes=True)
        parts.append(Figure("global-accuracy-by-client", caption, chart))
    missing = [
        (run.label, f"{run.result.evaluated_clients} of {len(run.clients)} clients were evaluated.")
        for run in evaluated
        if run.result.evaluated_clients < len(run.clients)
    ]
    return Section("clients", "Clients", "\n".join(notes_of(missing)), parts)


def filtered(groups: Groups, keep: Callable[[NamedRun], bool]) -> dict[str, list[NamedRun]]:
    """Return the groups with the runs to keep, without empty groups."""
    kept = {label: [run for run in runs if keep(run)] for label, runs in groups.items()}
    return {label: runs for label, runs in kept.items() if runs}


def _clients_caption(groups: Groups) -> str:
    runs = runs_of(groups)
    quantiles = "the tick is the median, the bar the middle half, the line the middle 90 per cent"
    if has_several_seeds(groups) or len(groups) > charts.COLOURS:
        return (
            f"Accuracy of the clients of all seeds after the last evaluated round: {quantiles}. "
            f"Up to {client_charts.MAX_ROWS} clients are circles."
        )
    if max(len(run.clients) for run in runs) > client_charts.MAX_ROWS:
        return f"Accuracy of clients by network: {quantiles}."
    same = client_charts.same_clients(runs)
    labels = "Number, network and classes" if same else "The number"
    return (
        f"{labels} of each client, and its accuracy on its own test data after the last evaluated "
        "round."
    )


def costs(groups: Groups) -> Section | None:
    """Return the section about bytes and seconds; None before the first round."""
    runs = runs_of(groups)
    if not any(run.rounds for run in runs):
        return None
    has_overhead = any(round.wire_bytes for run in runs for round in run.rounds)
    overhead = " Overhead is what the messages of Flower add." if has_overhead else ""
    sent = "Tensors sent by the clients (up) and by the server (down)." + overhead
    time = (
        "The phases of clients are summed over all clients, which may work at the same time. "
        "Server is the server's own computation. Wall clock is the duration of all rounds."
    )
    parts = [Figure("seconds-by-phase", time, charts.seconds_by_phase(groups))]
    text = _public_bytes(runs)
    if any(run.result.bytes_total for run in runs):
        parts.insert(0, Figure("bytes", sent, charts.bytes_by_direction(groups)))
    else:
        text = " ".join(["Nothing was sent.", text]).strip()
    return Section("costs", "Communication and time", text, parts)


def _public_bytes(runs: Sequence[NamedRun]) -> str:
    """Return the bytes of public data that every client must hold, as a sentence."""
    sizes = [(run.label, run.public_bytes) for run in runs]
    shown = notes_of((label, f"{human_bytes(size)} per client") for label, size in sizes if size)
    return f"Public data, once and not counted below: {'; '.join(shown)}." if shown else ""


def configurations(groups: Groups) -> Section:
    """Return the section with the settings that differ, and the configurations.

    A group shows those of its first run.
    """
    runs = [of_label[0] for of_label in groups.values()]
    parts: list[Table | Fold] = []
    if len(runs) > charts.COLOURS:
        parts.append(_own_settings(groups))
    elif len(runs) > 1:
        settings = [_flat(run.config) for run in runs]
        keys = dict.fromkeys(key for one in settings for key in one)
        rows = [
            [key, *(one.get(key, "-") for one in settings)]
            for key in keys
            if len({one.get(key) for one in settings}) > 1
        ]
        header = ["setting", *groups]
        if rows:
            parts.append(Table(header, rows, "Settings that differ between the runs"))
    parts += [Fold(f"{run.label}: config.toml", run.config_text) for run in runs]
    return Section("configuration", "Configuration", "", parts)


def _own_settings(groups: Groups) -> Table:
    """Return a table with a row for each group: its settings that not all groups have."""
    settings = {label: _flat(runs[0].config) for label, runs in groups.items()}
    first = next(iter(settings.values()))
    shared = {
        item for item in first.items() if all(item in each.items() for each in settings.values())
    }
    own = {
        label: [item for item in each.items() if item not in shared]
        for label, each in settings.items()
    }
    rows = [
        [label, ", ".join(f"{key}={value}" for key, value in items)] for label, items in own.items()
    ]
    return Table(["runs", "settings"], rows, "Settings that differ")


def _flat(table: dict[str, Any]) -> dict[str, str]:
    return {
        f"{section}.{key}": value if isinstance(value, str) else json.dumps(value, default=str)
        for section, values in table.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }


def cell(value: float | None, show: Callable[[float], str]) -> Cell | None:
    """Return a number as a cell; None if it is not known."""
    return None if value is None else Cell(show(value), value)


def runs_of(groups: Groups) -> list[NamedRun]:
    """Return all runs, group by group."""
    return [run for runs in groups.values() for run in runs]


def spread(values: Iterable[float | None], show: Callable[[float], str]) -> Cell | None:
    """Return the mean of the known values with their standard deviation; None if there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = f" ± {show(stdev(known))}" if len(set(known)) > 1 else ""
    return Cell(show(fmean(known)) + std, fmean(known))
