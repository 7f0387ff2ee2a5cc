"""The page about one run or several: what they are, what came out, what it cost, where it fails."""

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
"""From a run to its confusion; None, or a FedghError that says why there is none."""


def run_page(runs: Sequence[NamedRun], measure: Measure) -> Page:
    """Everything about these runs; `measure` finds out what their models confuse."""
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
    """How far a run has come, in a few words."""
    done, planned = len(run.rounds), run.settings.federation.rounds
    if run.finished:
        return f"finished after round {done}"
    return f"round {done} of {planned} is done" if done else "no round is complete yet"


def _lead(runs: Sequence[NamedRun]) -> str:
    if len(runs) > 1:
        open_ones = sum(not run.finished for run in runs)
        unfinished = f" {open_ones} of them not finished." if open_ones else ""
        return f"Side by side, each judged after its last round.{unfinished}"
    run = runs[0]
    what = (
        f"{run.settings.method.name} on {run.identity.name}: {run.settings.federation.clients} "
        f"clients, seed {run.settings.federation.seed}; {state_of(run)}."
    )
    if run.result.accuracy is None:
        return what
    everywhere = run.result.final.get("global_accuracy")
    beside = "" if everywhere is None else f", and {percent(everywhere)} of all classes alike"
    return (
        f"{what} The clients' models get {percent(run.result.accuracy)} right on average, "
        f"each on its own test data{beside}."
    )


def _summary(runs: Sequence[NamedRun]) -> Section:
    header = ["run", "method", "data", "seed", "rounds", "accuracy", "on all classes"]
    header += ["rounds to target", "bytes to target", "sent in all", "per client and round"]
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
    goal = f" The target is {', '.join(percent(t) for t in sorted(targets, key=str))}."
    text = (
        "Accuracy is the mean over the clients after the last evaluated round, never the best "
        "round, each on its own test data; on all classes: on test data of all clients, every "
        "class alike, over the clients that have trained. Bytes are those of the tensors that "
        "crossed, up and down (1 KB = 1024 B)."
    )
    tables = [Table(header, rows), *_metrics(runs)]
    return Section("summary", "Summary", text + (goal if targets else ""), tables)


def _metrics(runs: Sequence[NamedRun]) -> list[Table]:
    """All metrics of the last evaluated round, where a run has more than accuracy."""
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
    text = "A client that failed is as it was before; a rejected upload was not used."
    if len(rows) > MAX_PROBLEMS:
        text += f" The first {MAX_PROBLEMS} of {len(rows)}."
    table = Table(["run", "round", "client", "what", "reason"], rows[:MAX_PROBLEMS])
    return Section("problems", "Failed clients and rejected uploads", text, [table])


def _problems_of(round: Round) -> Iterator[list[Value]]:
    for problem in round.failed:
        yield [problem.client, "failed", problem.reason]
    if round.discarded is not None:
        yield ["server", "round discarded", round.discarded]
    for problem in round.rejected:
        aside = "; set aside" if problem.client in round.excluded else ""
        yield [problem.client, "upload rejected", problem.reason + aside]
    for out in round.dropped:
        labels = ", ".join(map(str, out.classes))
        yield [out.client, "class means left out", f"classes {labels} disagree with the others'"]


def _learning(runs: Sequence[NamedRun]) -> Section:
    parts: list[Figure] = []
    if any(run.evaluated for run in runs):
        caption = "Mean accuracy of the clients on their own test data. " + _dashes(runs)
        chart = charts.accuracy_over_rounds(runs)
        parts.append(Figure("accuracy-over-rounds", caption, chart, whole_width=True))
        if any(run.result.bytes_total for run in runs):
            caption = "The same over everything sent until then, up and down, by all clients."
            parts.append(Figure("accuracy-over-bytes", caption, charts.accuracy_over_bytes(runs)))
    if any(round.train_loss is not None for run in runs for round in run.rounds):
        caption = "Mean training loss of each round's participants, over all batches of the round."
        parts.append(Figure("loss-over-rounds", caption, charts.loss_over_rounds(runs)))
    text = "" if parts else "No round is complete yet."
    return Section("learning", "Learning", text, parts)


def _dashes(runs: Sequence[NamedRun]) -> str:
    targets = {run.settings.federation.target for run in runs} - {None}
    lines = "line is the target" if len(targets) == 1 else "lines are the targets"
    return f"The dashed {lines}." if targets else ""


def _clients(runs: Sequence[NamedRun]) -> Section | None:
    judged = [run for run in runs if run.evaluated]
    if not judged:
        return None
    many = max(len(run.clients) for run in judged) > client_charts.MAX_ROWS
    caption = (
        "Clients by architecture: the tick is the median, the bar the middle half, the line the "
        "middle 90 per cent."
        if many
        else f"{_who(judged)} of each client, and its accuracy on its own test data after the "
        "last evaluated round."
    )
    parts = [Figure("accuracy-by-client", caption, client_charts.accuracy_by_client(judged))]
    everywhere = [run for run in judged if run.global_accuracies]
    if everywhere:
        caption = "The same on test data of all clients, every class alike."
        chart = client_charts.accuracy_by_client(everywhere, on_all_classes=True)
        parts.append(Figure("global-accuracy-by-client", caption, chart))
    missing = [
        f"{run.label}: {run.result.evaluated_clients} of {len(run.clients)} clients were judged."
        for run in judged
        if run.result.evaluated_clients < len(run.clients)
    ]
    return Section("clients", "Clients", "\n".join(missing), parts)


def _who(runs: Sequence[NamedRun]) -> str:
    alike = client_charts.same_clients(runs)
    return "Number, architecture and classes" if alike else "The number"


def _classes(runs: Sequence[NamedRun], measure: Measure) -> Section:
    """Which classes are recognised and which are confused; without a measurement, why not."""
    measured: dict[str, Confusion] = {}
    reasons: list[str] = []
    for run in runs:
        try:
            found = measure(run.folder)
        except FedghError as error:
            reasons.append(f"{run.label}: {error}.")
        except Exception as error:  # a user's own network may raise anything
            reasons.append(f"{run.label}: {one_line(error)}.")
        else:
            if found is None:
                reasons.append(f"{run.label}: not measured yet.")
            else:
                measured[run.label] = found
    text = "Final models on their clients' own test data."
    for label, found in measured.items():
        if len(found.clients) < found.took_part:
            text += f"\n{label}: a random {MAX_CLIENTS} of {found.took_part} that took part."
    text += "".join(f"\nNot shown for {reason}" for reason in reasons)
    parts: list[Part] = []
    for number, group in enumerate(_by_classes([r for r in runs if r.label in measured]), 1):
        caption = "Share of each class that is recognised, over all clients that hold it."
        classes = group[0].identity.classes
        if len(classes) > client_charts.MANY_CLASSES:
            caption += " Classes are sorted by it; hover to see which is which."
        chart = client_charts.accuracy_by_class(group, measured, classes)
        parts.append(Figure(f"accuracy-by-class-{number}", caption, chart, whole_width=True))
    for number, run in enumerate(runs, 1):
        if run.label in measured:
            parts.append(_confusion(run, measured[run.label], number))
    if measured:
        parts.append(_mistakes(runs, measured))
    return Section("classes", "Classes", text, parts)


def _by_classes(runs: Sequence[NamedRun]) -> list[list[NamedRun]]:
    """Runs with the same classes together."""
    groups: dict[tuple[str, ...], list[NamedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(run.identity.classes), []).append(run)
    return list(groups.values())


def _confusion(run: NamedRun, found: Confusion, number: int) -> Figure:
    classes = run.identity.classes
    caption = (
        f"{run.label}: the share of each true class (row) that is taken for a class (column), in "
        "per cent. Models of clients that hold few classes only ever meet those."
    )
    return Figure(f"confusion-{number}", caption, client_charts.confusion_map(found, classes))


def _mistakes(runs: Sequence[NamedRun], measured: dict[str, Confusion]) -> Table:
    rows: list[list[Value]] = []
    for run in runs:
        if run.label in measured:
            classes = run.identity.classes
            rows += [
                [run.label, classes[true], classes[said], samples, _cell(share, percent)]
                for true, said, samples, share in client_charts.most_confused(measured[run.label])
            ]
    header = ["run", "true class", "taken for", "samples", "share of the class"]
    return Table(header, rows, "The most frequent mistakes")


def _means(runs: Sequence[NamedRun]) -> Section:
    parts: list[Figure] = []
    words: list[str] = []
    for number, run in enumerate(runs, 1):
        try:
            projection = project(run)
        except RunError as error:
            words.append(f"{run.label}: {error}.")
            continue
        if projection is None:
            words.append(f"{run.label}: there are none in its folder.")
            continue
        caption = (
            f"{run.label}: one point per client and class, coloured by class, on the two principal "
            f"components of all class means kept during the run ({percent(projection.explained)} "
            "of their variance); the same plane and scale in every panel."
        )
        if projection.left_out:
            caption += f" Up to {projection.left_out} points of a panel are left out."
        parts.append(Figure(f"means-{number}", caption, means_chart(run, projection)))
    text = (
        "Where the class means lie that clients send to the server, if the method sends any and "
        "the run keeps them; FedGH's are the paper's LARs."
    )
    return Section("means", "Class means", "\n".join([text, *words]), parts)


def _costs(runs: Sequence[NamedRun]) -> Section | None:
    if not any(run.rounds for run in runs):
        return None
    wrapped = any(round.wire_bytes for run in runs for round in run.rounds)
    around = " Wrapping is what the messages of Flower add." if wrapped else ""
    sent = "Tensors sent by the clients (up) and by the server (down)." + around
    time = (
        "Clients' phases are added up over all clients, which may work at the same time; server "
        "is the server's own computation; wall clock is how long the rounds took altogether."
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
    """What uploads may tell of the clients' data, at most, and what that number covers."""
    header = ["run", "protects", "ε so far", "ε asked for", "δ", "clip", "counts"]
    rows: list[list[Value]] = []
    for run in runs:
        spent = [round.epsilon for round in run.rounds if round.epsilon is not None]
        asked = run.settings.privacy
        if spent and asked.protects != "nothing":
            counts = asked.counts if asked.protects == "sample" else "not told"
            shown = [PROTECTED[asked.protects], _cell(spent[-1], "{:.2f}".format), asked.epsilon]
            rows.append([run.label, *shown, f"{asked.delta:g}", asked.clip, counts])
    if not rows:
        return None
    text = (
        "Clients send class means of clipped vectors, with Gaussian noise. ε is that of the "
        "client that was asked most often, over all rounds so far; summary.json has everybody's. "
        "It covers uploads, not the accuracies that clients report, the list of their classes, or "
        "how long they take. For one sample it takes the extractor as given: what an extractor "
        "tells because it was trained on the sample is not covered. For all data of a client "
        "nothing is assumed."
    )
    return Section("privacy", "Privacy", text, [Table(header, rows)])


def _same_data(one: NamedRun, other: NamedRun) -> bool:
    a, b = one.identity, other.identity
    return one.clients == other.clients and (a.name, a.classes) == (b.name, b.classes)


def _partition(runs: Sequence[NamedRun]) -> Section:
    groups: list[list[NamedRun]] = []
    for run in runs:
        alike = (g for g in groups if _same_data(g[0], run))
        same = next(alike, None)
        if same is None:
            groups.append([run])
        else:
            same.append(run)
    parts: list[Figure] = []
    words: list[str] = []
    for number, group in enumerate(groups, 1):
        run = group[0]
        whose = ", ".join(r.label for r in group) if len(groups) > 1 else ""
        if not any(client.classes for client in run.clients):
            words.append(f"{whose or run.label}: what a client holds is known to its owner alone.")
            continue
        shown, clients = client_charts.shown_clients(run), len(run.clients)
        caption = "Samples that each client holds, train, validation and test together."
        if shown < clients:
            caption += f" The first {shown} of {clients} clients."
        caption = f"{whose}: {caption}" if whose else caption
        parts.append(Figure(f"samples-{number}", caption, client_charts.samples_by_class(run)))
    return Section("data", "Who holds what", "\n".join(words), parts)


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
            parts.append(Table(header, rows, "What differs between the runs"))
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
