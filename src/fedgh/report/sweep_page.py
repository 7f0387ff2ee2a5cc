"""The page of a comparison or a search: results, tests, learning, clients, costs, missing runs."""

from collections.abc import Callable

from fedgh.formats import by_note, few, human_bytes
from fedgh.report import sweep_charts
from fedgh.report.charts import COLOURS, accuracy_over_rounds
from fedgh.report.groups import Groups
from fedgh.report.page import Cell, Figure, Page, Part, Section, Table, Value, sheet_table
from fedgh.report.sections import (
    clients,
    configurations,
    learning,
    problems,
    runs_of,
)
from fedgh.runs.read import NamedRun
from fedgh.studies.significance import SIGNIFICANT
from fedgh.studies.statistics import Row, mean_accuracy, network_sheet
from fedgh.studies.sweep import join_seeds
from fedgh.studies.sweep_folder import Sweep
from fedgh.studies.sweep_sheets import differences_sheet, results_sheet, search_sheet
from fedgh.studies.tuning import method_in
from fedgh.tables import Column, Measured, Sheet

MAX_SHOWN = 60
"""Maximum number of settings of a search that charts show."""


def sweep_page(sweep: Sweep) -> Page:
    """Return the page about a comparison or a search."""
    title = sweep.folder.resolve().name
    if not sweep.rows:
        sections = [each for each in [_missing(sweep)] if each is not None]
        return Page(title, "No run has a result.", sections)
    groups = _groups(sweep)
    results = _of_search(sweep, groups) if sweep.searched else _of_comparison(sweep, groups)
    others = [problems(runs_of(groups)), _missing(sweep), configurations(groups)]
    sections = [each for each in (*results, *others) if each is not None]
    return Page(title, _lead(sweep, groups), sections)


def _of_comparison(sweep: Sweep, groups: Groups) -> list[Section | None]:
    networks = network_sheet(sweep.runs, sweep.last)
    return [
        _results(sweep),
        _differences(sweep),
        learning(groups),
        clients(groups),
        None
        if networks is None
        else Section("networks", networks.title, parts=[sheet_table(networks)]),
        _costs(sweep.rows, target=any(row.reached for row in sweep.rows)),
    ]


def _of_search(sweep: Sweep, groups: Groups) -> list[Section | None]:
    """Return sections in which nothing is ranked by its accuracy on test data."""
    shown = sweep.rows[:MAX_SHOWN]
    chart = sweep_charts.accuracies(
        shown,
        lambda row: (row.validation_accuracy, row.validation_accuracy_std),
        _by_seed(sweep, "validation_accuracy"),
    )
    caption = "Mean accuracy on the validation split; a tick is the mean, a circle is a seed."
    if len(sweep.rows) > len(shown):
        caption += f" The first {len(shown)} of {len(sweep.rows)} rows of the table."
    figure = Figure("validation-accuracy", caption, chart, whole_width=True)
    curves = Figure(
        "validation-accuracy-over-rounds",
        f"The same after each round, for the {len(groups)} settings that were best in the search.",
        accuracy_over_rounds(groups, "validation_accuracy"),
        whole_width=True,
    )
    return [
        _table_section("results", search_sheet(sweep), [figure]),
        Section("learning", "Learning", parts=[curves]),
        _costs(shown, target=False),  # the target is one of accuracy on test data
    ]


def _groups(sweep: Sweep) -> Groups:
    """Return the runs by label; of a search only the best settings, as many as colours."""
    labels = list(sweep.runs)
    if sweep.searched:
        each = max(1, COLOURS // len(sweep.chosen))
        ranks: dict[str, int] = {}
        labels = []
        for row in sweep.rows:
            method = method_in(row.label)
            ranks[method] = ranks.get(method, 0) + 1
            if ranks[method] <= each:
                labels.append(row.label)
    return {
        label: [
            NamedRun(f"{label}, seed {seed}" if len(sweep.runs[label]) > 1 else label, run)
            for seed, run in sweep.runs[label].items()
        ]
        for label in labels
    }


def _lead(sweep: Sweep, groups: Groups) -> str:
    first = runs_of(groups)[0]
    seeds = ", ".join(map(str, sweep.seeds))
    what = "settings" if sweep.searched else "methods"
    text = (
        f"{len(sweep.rows)} {what} on {first.identity.name}: "
        f"{first.settings.federation.clients} clients, {first.settings.federation.rounds} rounds, "
        f"{'seeds' if len(sweep.seeds) > 1 else 'seed'} {seeds}."
    )
    if sweep.searched:
        return f"{text} Chosen on the validation split: {few(sorted(sweep.chosen))}."
    tested = [row for row in sweep.rows if row.difference is not None]
    if not tested:
        return text
    counts = [
        sum(p is not None and p < SIGNIFICANT for p in values)
        for values in ([row.p_holm for row in tested], [row.p_seeds_holm for row in tested])
    ]
    return (
        f"{text} Significant differences to {sweep.reference}, corrected: {counts[0]} of "
        f"{len(tested)} in the test over clients and seeds, {counts[1]} in the test over seeds."
    )


def _results(sweep: Sweep) -> Section:
    metrics: dict[str, tuple[str, Callable[[Row], sweep_charts.Spread]]] = {
        "accuracy": (
            "on the clients' own test data",
            lambda row: (row.accuracy, row.accuracy_std),
        ),
        "global_accuracy": (
            "on test data of all classes",
            lambda row: (row.global_accuracy, row.global_accuracy_std),
        ),
    }
    several = any(row.seeds > 1 for row in sweep.rows)
    spread = (
        ": a tick is the mean, a line extends one standard deviation up and down, a circle is a "
        "seed"
        if several
        else ", with one seed"
    )
    figures: list[Part] = [
        Figure(
            metric.replace("_", "-"),
            f"Mean accuracy {data}{spread}.",
            sweep_charts.accuracies(sweep.rows, of, _by_seed(sweep, metric)),
        )
        for metric, (data, of) in metrics.items()
        if any(of(row)[0] is not None for row in sweep.rows)
    ]
    return _table_section("results", results_sheet(sweep), figures)


def _differences(sweep: Sweep) -> Section | None:
    sheet = differences_sheet(sweep)
    if sheet is None:
        return None
    caption = (
        f"Difference to {sweep.reference} with its 95% interval, which is the wider of one over "
        "seeds and one over clients. A filled point is significant in the test over clients and "
        "seeds, corrected."
    )
    chart = sweep_charts.differences(sweep.rows)
    return _table_section(
        "differences", sheet, [Figure("differences", caption, chart, whole_width=True)]
    )


def _table_section(name: str, sheet: Sheet, figures: list[Part]) -> Section:
    """Return a section with figures, the table below them, and the note as its text."""
    return Section(name, sheet.title, sheet.note, [sheet_table(sheet, note=False), *figures])


def _by_seed(sweep: Sweep, metric: str) -> dict[str, list[float]]:
    """Return the mean over clients of each seed of a label, if there are several seeds."""
    means = {
        label: [mean_accuracy(run, sweep.last, metric) for run in runs.values()]
        for label, runs in sweep.runs.items()
        if len(runs) > 1
    }
    return {
        label: [mean for mean in of_label if mean is not None] for label, of_label in means.items()
    }


def _costs(rows: list[Row], target: bool) -> Section:
    """Return the section about bytes and seconds, and with `target` the cost of reaching it."""
    header = ["method", "per client and round", "as the paper counts", "seconds"]
    lines: list[list[Value]] = [
        [
            row.label,
            _with_std(row.bytes_per_client_round, row.bytes_per_client_round_std, human_bytes),
            _with_std(row.paper_bytes_per_client_round, None, human_bytes),
            _with_std(row.seconds, row.seconds_std, "{:,.1f}".format),
        ]
        for row in rows
    ]
    if target:
        header += ["rounds to target", "bytes to target", "seeds that reach it"]
        for row, line in zip(rows, lines, strict=True):
            sent = _with_std(row.bytes_to_target, row.bytes_to_target_std, human_bytes)
            line += [_rounds(row), sent, f"{row.reached} of {row.seeds}"]
    parts: list[Part] = [Table(header, lines)]
    if any(row.bytes_per_client_round for row in rows):
        caption = "Bytes sent up and down per client and round, on a logarithmic axis."
        parts.append(Figure("bytes", caption, sweep_charts.bytes_per_round(rows)))
    caption = "Seconds of all rounds of a run; a line extends one standard deviation over seeds."
    parts.append(Figure("seconds", caption, sweep_charts.seconds(rows)))
    return Section("costs", "Communication and time", parts=parts)


def _with_std(mean: float | None, std: float | None, show: Callable[[float], str]) -> Cell | None:
    if mean is None:
        return None
    return Cell(show(mean) + (f" ± {show(std)}" if std else ""), mean)


def _rounds(row: Row) -> Cell | None:
    if row.rounds_to_target is None:
        return None
    rounds = Measured(row.rounds_to_target, row.rounds_to_target_std)
    return Cell(Column("", digits=1).show(rounds), rounds.mean)


def _missing(sweep: Sweep) -> Section | None:
    """Return the runs without a result; a reason that several share is listed once."""
    if not sweep.missing:
        return None
    reasons = by_note(join_seeds(sweep.missing).items())
    rows = [["; ".join(runs), reason] for reason, runs in reasons.items()]
    text = "A method has no result if the run of one of its seeds has none."
    return Section("missing", "Without a result", text, [Table(["run", "reason"], rows)])
