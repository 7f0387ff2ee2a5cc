"""The page about one run or several: their results, problems, costs, data and configurations.

Runs that differ only in the seed are shown as one group: one line, one distribution, one matrix.
"""

from collections.abc import Callable, Mapping, Sequence

from fedgh.core.records import RECORDED
from fedgh.errors import FedghError, RunError, one_line
from fedgh.formats import human_bytes, notes_of, percent
from fedgh.report import client_charts
from fedgh.report.audit_section import audit_section
from fedgh.report.groups import Groups, group_by_seed, has_several_seeds
from fedgh.report.means_chart import means_chart, project
from fedgh.report.page import Cell, Figure, Page, Part, Section, Table, Value
from fedgh.report.sections import (
    cell,
    clients,
    configurations,
    costs,
    filtered,
    learning,
    problems,
    runs_of,
    spread,
)
from fedgh.report.terminal import PROTECTED
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun
from fedgh.trained.confusion import MAX_CLIENTS, Confusion

Measure = Callable[[RunFolder], Confusion | None]
"""Function of a run folder that returns its confusion matrix, or None if it is not measured yet.

It raises FedghError with the reason if the matrix cannot be measured.
"""


def run_page(runs: Sequence[NamedRun], measure: Measure) -> Page:
    """Return the page about these runs; `measure` returns their confusion matrices."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    groups = group_by_seed(runs)
    sections = [
        _summary(groups),
        problems(runs),
        learning(groups),
        clients(groups),
        _classes(groups, measure),
        _means(runs),
        audit_section(runs),
        costs(groups),
        _privacy(runs),
        _partition(runs),
        configurations(groups),
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
        note = f" Not finished: {unfinished} of {len(runs)}." if unfinished else ""
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


def _summary(groups: Groups) -> Section:
    runs = runs_of(groups)
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
                cell(result.accuracy, percent),
                cell(result.final.get("global_accuracy"), percent),
                result.rounds_to_target,
                cell(result.bytes_to_target, human_bytes),
                cell(result.bytes_total, human_bytes),
                cell(result.bytes_per_client_round, human_bytes),
                cell(result.seconds, "{:,.1f}".format),
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
    text += target if targets else ""
    tables = [Table(header, rows), *_metrics(runs)]
    if has_several_seeds(groups):
        tables.insert(0, _means_over_seeds(groups))
    return Section("summary", "Summary", text, tables)


def _means_over_seeds(groups: Groups) -> Table:
    """Return a table of the groups of runs that differ only in the seed."""
    header = ["runs", "seeds", "accuracy", "on all classes", "bytes sent", "seconds"]
    rows: list[list[Value]] = []
    for label, runs in groups.items():
        done = [run for run in runs if run.finished] or runs
        results = [run.result for run in done]
        seeds = ", ".join(str(run.settings.federation.seed) for run in done)
        rows.append(
            [
                label,
                seeds,
                spread([result.accuracy for result in results], percent),
                spread([result.final.get("global_accuracy") for result in results], percent),
                spread([result.bytes_total for result in results], human_bytes),
                spread([result.seconds for result in results], "{:,.1f}".format),
            ]
        )
    caption = "Mean ± standard deviation over the seeds of finished runs"
    return Table(header, rows, caption)


def _metrics(runs: Sequence[NamedRun]) -> list[Table]:
    """Return a table of all metrics of the last evaluated round, unless it has only accuracies."""
    names = [name for name in RECORDED if any(name in run.result.final for run in runs)]
    if not set(names) - {"accuracy", "validation_accuracy", "global_accuracy"}:
        return []
    rows: list[list[Value]] = [
        [run.label, *(cell(run.result.final.get(name), "{:.3f}".format) for name in names)]
        for run in runs
    ]
    return [Table(["run", *(name.replace("_", " ") for name in names)], rows)]


def _classes(groups: Groups, measure: Measure) -> Section:
    """Return accuracies by class and confusion matrices, or the reasons why there are none."""
    runs = runs_of(groups)
    measured: dict[str, Confusion] = {}
    missing: list[tuple[str, str]] = []
    for run in runs:
        try:
            confusion = measure(run.folder)
        except FedghError as error:
            missing.append((run.label, f"{error}."))
        except Exception as error:  # a user's own network may raise anything
            missing.append((run.label, f"{one_line(error)}."))
        else:
            if confusion is None:
                missing.append((run.label, "not measured yet."))
            else:
                measured[run.label] = confusion
    text = "Final models, each on its client's own test data."
    for label, confusion in measured.items():
        if len(confusion.clients) < confusion.took_part:
            text += (
                f"\n{label}: {MAX_CLIENTS} random clients of the {confusion.took_part} that took "
                "part."
            )
    text += "".join(f"\nNot shown for {note}" for note in notes_of(missing))
    parts: list[Part] = []
    shown = filtered(groups, lambda run: run.label in measured)
    counts = {
        label: client_charts.pooled(measured[run.label] for run in runs)
        for label, runs in shown.items()
    }
    names = {label: runs[0].identity.classes for label, runs in shown.items()}
    for number, group in enumerate(_by_classes(names), 1):
        caption = "Accuracy on each class, over all clients that have it."
        classes = names[group[0]]
        if len(classes) > client_charts.MAX_NAMED_CLASSES:
            caption += " Classes are sorted by accuracy; hover over a bar to see its class."
        chart = client_charts.accuracy_by_class({label: counts[label] for label in group}, classes)
        parts.append(Figure(f"accuracy-by-class-{number}", caption, chart, whole_width=True))
    for number, label in enumerate(groups, 1):
        if label in counts:
            parts.append(_confusion(label, counts[label], names[label], number))
    if counts:
        parts.append(_mistakes(counts, names))
    return Section("classes", "Classes", text, parts)


def _by_classes(names: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the labels in groups with the same classes."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for label, classes in names.items():
        groups.setdefault(tuple(classes), []).append(label)
    return list(groups.values())


def _confusion(
    label: str, counts: client_charts.Counts, classes: Sequence[str], number: int
) -> Figure:
    caption = (
        f"{label}: the share of each true class (row) that is predicted as a class (column), "
        "in per cent. The model of a client is tested only on the classes that the client has."
    )
    return Figure(f"confusion-{number}", caption, client_charts.confusion_map(counts, classes))


def _mistakes(
    measured: Mapping[str, client_charts.Counts], names: Mapping[str, Sequence[str]]
) -> Table:
    rows: list[list[Value]] = [
        [label, names[label][true], names[label][predicted], samples, cell(share, percent)]
        for label, counts in measured.items()
        for true, predicted, samples, share in client_charts.most_confused(counts)
    ]
    header = ["run", "true class", "predicted class", "samples", "share of the class"]
    return Table(header, rows, "The most frequent mistakes")


def _means(runs: Sequence[NamedRun]) -> Section:
    parts: list[Figure] = []
    notes: list[tuple[str, str]] = []
    for number, run in enumerate(runs, 1):
        try:
            projection = project(run)
        except RunError as error:
            notes.append((run.label, f"{error}."))
            continue
        if projection is None:
            notes.append((run.label, "no class means are stored."))
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
    return Section("means", "Class means", "\n".join([text, *notes_of(notes)]), parts)


def _privacy(runs: Sequence[NamedRun]) -> Section | None:
    """Return the ε that the runs have spent, and what it covers."""
    header = ["run", "protects", "ε so far", "limit of ε", "δ", "clip", "counts"]
    rows: list[list[Value]] = []
    for run in runs:
        spent = [round.epsilon for round in run.rounds if round.epsilon is not None]
        privacy = run.settings.privacy
        if spent and privacy.protects != "nothing":
            counts = privacy.counts if privacy.protects == "sample" else "not revealed"
            epsilon = cell(spent[-1], "{:.2f}".format)
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
