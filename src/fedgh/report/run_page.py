"""The page about one run or several: their results, problems, costs, data and configurations."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedgh.core.records import RECORDED, Round
from fedgh.errors import FedghError, RunError, one_line
from fedgh.formats import human_bytes, percent
from fedgh.report import charts, client_charts
from fedgh.report.audit_section import audit_section
from fedgh.report.means_chart import means_chart, project
from fedgh.report.page import Cell, Figure, Fold, Page, Part, Section, Table, Value
from fedgh.report.terminal import PROTECTED
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun
from fedgh.trained.confusion import MAX_CLIENTS, Confusion

MAX_PROBLEMS = 200

Measure = Callable[[RunFolder], Confusion | None]
"""Function of a run folder that returns its confusion matrix, or None if it is not measured yet.

It raises FedghError with the reason if the matrix cannot be measured.
"""


def run_page(runs: Sequence[NamedRun], measure: Measure) -> Page:
    """Return the page about these runs; `measure` returns their confusion matrices."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    sections = [
        _summary(runs),
        _problems(runs),
        _learning(runs),
        _clients(runs),
        _classes(runs, measure),
        _means(runs),
        audit_section(runs),
        _costs(runs),
        _privacy(runs),
        _partition(runs),
        _configurations(runs),
    ]
    return Page(title, _lead(runs), [section for section in sections if section is not None])


def state_of(run: NamedRun) -> str:
    """Return the progress of a run as text."""
    done, planned = len(run.rounds), run.settings.federation.rounds
    if run.finished:
        return f"finished after round {done}"
    return f"round {done} of {planned} is done" if done else "no round is complete yet"


def _lead(runs: Sequence[NamedRun]) -> str:
    if len(runs) > 1:
        unfinished = sum(not run.finished for run in runs)
        note = f" {unfinished} of them are not finished." if unfinished else ""
        return f"A comparison of runs, each evaluated after its last round.{note}"
    run = runs[0]
    description = (
        f"{run.settings.method.name} on {run.identity.name}: {run.settings.federation.clients} "
        f"clients, seed {run.settings.federation.seed}; {state_of(run)}."
    )
    if run.result.accuracy is None:
        return description
    global_accuracy = run.result.final.get("global_accuracy")
    on_all = (
        ""
        if global_accuracy is None
        else f", and {percent(global_accuracy)} on test data of all classes"
    )
    return (
        f"{description} The mean accuracy of the clients is {percent(run.result.accuracy)}, each "
        f"on its own test data{on_all}."
    )


def _summary(runs: Sequence[NamedRun]) -> Section:
    header = ["run", "method", "data", "seed", "rounds", "accuracy", "on all classes"]
    header += ["rounds to target", "bytes to target", "bytes sent", "per client and round"]
    header += ["seconds"]
    rows: list[list[Value]] = []
    for run in runs:
        result, settings = run.result, run.settings
        rounds = f"{result.rounds}"
        if not run.finished:
            rounds += f" of {settings.federation.rounds}"
        rows.append(
            [
                run.label,
                settings.method.name,
                run.identity.name,
                settings.federation.seed,
                Cell(rounds, result.rounds),
                _cell(result.accuracy, percent),
                _cell(result.final.get("global_accuracy"), percent),
                result.rounds_to_target,
                _cell(result.bytes_to_target, human_bytes),
                _cell(result.bytes_total, human_bytes),
                _cell(result.bytes_per_client_round, human_bytes),
                _cell(result.seconds, "{:,.1f}".format),
            ]
        )
    targets = {run.settings.federation.target for run in runs} - {None}
    target = f" The target is {', '.join(percent(t) for t in sorted(targets, key=str))}."
    text = (
        "Accuracy is the mean over the clients after the last evaluated round, never the best "
        "round, each client on its own test data. The accuracy on all classes is measured on test "
        "samples of all clients, with the same number of samples per class, and is the mean over "
        "the clients that have trained. Bytes are those of the tensors in uploads and downloads "
        "(1 KB = 1024 B)."
    )
    tables = [Table(header, rows), *_metrics(runs)]
    return Section("summary", "Summary", text + (target if targets else ""), tables)


def _metrics(runs: Sequence[NamedRun]) -> list[Table]:
    """Return a table of all metrics of the last evaluated round, unless it has only accuracies."""
    names = [name for name in RECORDED if any(name in run.result.final for run in runs)]
    if not set(names) - {"accuracy", "validation_accuracy", "global_accuracy"}:
        return []
    rows: list[list[Value]] = [
        [run.label, *(_cell(run.result.final.get(name), "{:.3f}".format) for name in names)]
        for run in runs
    ]
    return [Table(["run", *(name.replace("_", " ") for name in names)], rows)]


def _problems(runs: Sequence[NamedRun]) -> Section | None:
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


def _learning(runs: Sequence[NamedRun]) -> Section:
    parts: list[Figure] = []
    if any(run.evaluated for run in runs):
        caption = "Mean accuracy of the clients on their own test data. " + _target_lines(runs)
        chart = charts.accuracy_over_rounds(runs)
        parts.append(Figure("accuracy-over-rounds", caption, chart, whole_width=True))
        if any(run.result.bytes_total for run in runs):
            caption = "The same accuracy over the bytes that all clients have sent and received."
            parts.append(Figure("accuracy-over-bytes", caption, charts.accuracy_over_bytes(runs)))
    if any(round.train_loss is not None for run in runs for round in run.rounds):
        caption = "Mean training loss of each round's participants, over all batches of the round."
        parts.append(Figure("loss-over-rounds", caption, charts.loss_over_rounds(runs)))
    text = "" if parts else "No round is complete yet."
    return Section("learning", "Learning", text, parts)


def _target_lines(runs: Sequence[NamedRun]) -> str:
    targets = {run.settings.federation.target for run in runs} - {None}
    lines = "line is the target" if len(targets) == 1 else "lines are the targets"
    return f"The dashed {lines}." if targets else ""


def _clients(runs: Sequence[NamedRun]) -> Section | None:
    evaluated = [run for run in runs if run.evaluated]
    if not evaluated:
        return None
    many = max(len(run.clients) for run in evaluated) > client_charts.MAX_ROWS
    caption = (
        "Accuracy of clients by network: the tick is the median, the bar the middle half, the line "
        "the middle 90 per cent."
        if many
        else f"{_client_labels(evaluated)} of each client, and its accuracy on its own test data "
        "after the last evaluated round."
    )
    parts = [Figure("accuracy-by-client", caption, client_charts.accuracy_by_client(evaluated))]
    with_global = [run for run in evaluated if run.global_accuracies]
    if with_global:
        caption = (
            "The same on test samples of all clients, with the same number of samples per class."
        )
        chart = client_charts.accuracy_by_client(with_global, on_all_classes=True)
        parts.append(Figure("global-accuracy-by-client", caption, chart))
    missing = [
        f"{run.label}: {run.result.evaluated_clients} of {len(run.clients)} clients were evaluated."
        for run in evaluated
        if run.result.evaluated_clients < len(run.clients)
    ]
    return Section("clients", "Clients", "\n".join(missing), parts)


def _client_labels(runs: Sequence[NamedRun]) -> str:
    same = client_charts.same_clients(runs)
    return "Number, network and classes" if same else "The number"


def _classes(runs: Sequence[NamedRun], measure: Measure) -> Section:
    """Return accuracies by class and confusion matrices, or the reasons why there are none."""
    measured: dict[str, Confusion] = {}
    reasons: list[str] = []
    for run in runs:
        try:
            confusion = measure(run.folder)
        except FedghError as error:
            reasons.append(f"{run.label}: {error}.")
        except Exception as error:  # a user's own network may raise anything
            reasons.append(f"{run.label}: {one_line(error)}.")
        else:
            if confusion is None:
                reasons.append(f"{run.label}: not measured yet.")
            else:
                measured[run.label] = confusion
    text = "Final models, each on its client's own test data."
    for label, confusion in measured.items():
        if len(confusion.clients) < confusion.took_part:
            text += (
                f"\n{label}: {MAX_CLIENTS} random clients of the {confusion.took_part} that took "
                "part."
            )
    text += "".join(f"\nNot shown for {reason}" for reason in reasons)
    parts: list[Part] = []
    for number, group in enumerate(_by_classes([r for r in runs if r.label in measured]), 1):
        caption = "Accuracy on each class, over all clients that have it."
        classes = group[0].identity.classes
        if len(classes) > client_charts.MAX_NAMED_CLASSES:
            caption += " Classes are sorted by accuracy; hover over a bar to see its class."
        chart = client_charts.accuracy_by_class(group, measured, classes)
        parts.append(Figure(f"accuracy-by-class-{number}", caption, chart, whole_width=True))
    for number, run in enumerate(runs, 1):
        if run.label in measured:
            parts.append(_confusion(run, measured[run.label], number))
    if measured:
        parts.append(_mistakes(runs, measured))
    return Section("classes", "Classes", text, parts)


def _by_classes(runs: Sequence[NamedRun]) -> list[list[NamedRun]]:
    """Return the runs in groups with the same classes."""
    groups: dict[tuple[str, ...], list[NamedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(run.identity.classes), []).append(run)
    return list(groups.values())


def _confusion(run: NamedRun, confusion: Confusion, number: int) -> Figure:
    classes = run.identity.classes
    caption = (
        f"{run.label}: the share of each true class (row) that is predicted as a class (column), "
        "in per cent. The model of a client is tested only on the classes that the client has."
    )
    return Figure(f"confusion-{number}", caption, client_charts.confusion_map(confusion, classes))


def _mistakes(runs: Sequence[NamedRun], measured: dict[str, Confusion]) -> Table:
    rows: list[list[Value]] = []
    for run in runs:
        if run.label in measured:
            classes = run.identity.classes
            rows += [
                [run.label, classes[true], classes[predicted], samples, _cell(share, percent)]
                for true, predicted, samples, share in client_charts.most_confused(
                    measured[run.label]
                )
            ]
    header = ["run", "true class", "predicted class", "samples", "share of the class"]
    return Table(header, rows, "The most frequent mistakes")


def _means(runs: Sequence[NamedRun]) -> Section:
    parts: list[Figure] = []
    notes: list[str] = []
    for number, run in enumerate(runs, 1):
        try:
            projection = project(run)
        except RunError as error:
            notes.append(f"{run.label}: {error}.")
            continue
        if projection is None:
            notes.append(f"{run.label}: its folder has no class means.")
            continue
        caption = (
            f"{run.label}: one point per client and class, coloured by class, on the two principal "
            f"components of all class means stored during the run ({percent(projection.explained)} "
            "of their variance). All panels have the same plane and scale."
        )
        if projection.left_out:
            caption += f" Up to {projection.left_out} points of a panel are omitted."
        parts.append(Figure(f"means-{number}", caption, means_chart(run, projection)))
    text = (
        "The class means that clients send to the server, if the method sends any and the run "
        "stores them. The FedGH paper calls them local averaged representations (LAR)."
    )
    return Section("means", "Class means", "\n".join([text, *notes]), parts)


def _costs(runs: Sequence[NamedRun]) -> Section | None:
    if not any(run.rounds for run in runs):
        return None
    has_overhead = any(round.wire_bytes for run in runs for round in run.rounds)
    overhead = " Overhead is what the messages of Flower add." if has_overhead else ""
    sent = "Tensors sent by the clients (up) and by the server (down)." + overhead
    time = (
        "The phases of clients are summed over all clients, which may work at the same time. "
        "Server is the server's own computation. Wall clock is the duration of all rounds."
    )
    parts = [Figure("seconds-by-phase", time, charts.seconds_by_phase(runs))]
    text = _public_bytes(runs)
    if any(run.result.bytes_total for run in runs):
        parts.insert(0, Figure("bytes", sent, charts.bytes_by_direction(runs)))
    else:
        text = " ".join(["Nothing was sent.", text]).strip()
    return Section("costs", "Communication and time", text, parts)


def _public_bytes(runs: Sequence[NamedRun]) -> str:
    """Return the bytes of public data that every client must hold, as a sentence."""
    sizes = {run.label: run.public_bytes for run in runs}
    shown = [f"{label} {human_bytes(n)} per client" for label, n in sizes.items() if n is not None]
    return f"Public data, once and not counted below: {'; '.join(shown)}." if shown else ""


def _privacy(runs: Sequence[NamedRun]) -> Section | None:
    """Return the ε that the runs have spent, and what it covers."""
    header = ["run", "protects", "ε so far", "limit of ε", "δ", "clip", "counts"]
    rows: list[list[Value]] = []
    for run in runs:
        spent = [round.epsilon for round in run.rounds if round.epsilon is not None]
        privacy = run.settings.privacy
        if spent and privacy.protects != "nothing":
            counts = privacy.counts if privacy.protects == "sample" else "not revealed"
            epsilon = _cell(spent[-1], "{:.2f}".format)
            values = [PROTECTED[privacy.protects], epsilon, privacy.epsilon]
            rows.append([run.label, *values, f"{privacy.delta:g}", privacy.clip, counts])
    if not rows:
        return None
    text = (
        "Clients send class means of clipped vectors, with Gaussian noise. ε is the highest of all "
        "clients, over all rounds so far; summary.json has the ε of every client. It covers "
        "uploads. It does not cover the accuracies that clients report, the list of their classes, "
        "or their computing times. The ε of one sample assumes a fixed extractor: it does not "
        "cover what the extractor reveals because it was trained on the sample. The ε of all data "
        "of a client has no such assumption."
    )
    return Section("privacy", "Privacy", text, [Table(header, rows)])


def _same_data(one: NamedRun, other: NamedRun) -> bool:
    a, b = one.identity, other.identity
    return one.clients == other.clients and (a.name, a.classes) == (b.name, b.classes)


def _partition(runs: Sequence[NamedRun]) -> Section:
    groups: list[list[NamedRun]] = []
    for run in runs:
        group = next((group for group in groups if _same_data(group[0], run)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    parts: list[Figure] = []
    notes: list[str] = []
    for number, group in enumerate(groups, 1):
        run = group[0]
        names = ", ".join(r.label for r in group) if len(groups) > 1 else ""
        if not any(client.classes for client in run.clients):
            notes.append(f"{names or run.label}: the server does not know the clients' samples.")
            continue
        shown, clients = client_charts.shown_clients(run), len(run.clients)
        caption = "Samples of each client: training, validation and test splits together."
        if shown < clients:
            caption += f" The first {shown} of {clients} clients."
        caption = f"{names}: {caption}" if names else caption
        parts.append(Figure(f"samples-{number}", caption, client_charts.samples_by_class(run)))
    return Section("data", "Samples of the clients", "\n".join(notes), parts)


def _configurations(runs: Sequence[NamedRun]) -> Section:
    parts: list[Table | Fold] = []
    if len(runs) > 1:
        settings = [_flat(run.config) for run in runs]
        keys = dict.fromkeys(key for one in settings for key in one)
        rows = [
            [key, *(one.get(key, "-") for one in settings)]
            for key in keys
            if len({one.get(key) for one in settings}) > 1
        ]
        header = ["setting", *(run.label for run in runs)]
        if rows:
            parts.append(Table(header, rows, "Settings that differ between the runs"))
    parts += [Fold(f"{run.label}: config.toml", run.config_text) for run in runs]
    return Section("configuration", "Configuration", "", parts)


def _flat(table: dict[str, Any]) -> dict[str, str]:
    return {
        f"{section}.{key}": value if isinstance(value, str) else json.dumps(value, default=str)
        for section, values in table.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }


def _cell(value: float | None, show: Callable[[float], str]) -> Cell | None:
    return None if value is None else Cell(show(value), value)
