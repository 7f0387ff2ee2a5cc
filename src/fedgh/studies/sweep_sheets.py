"""The tables of a comparison or a search: results, tests of differences, networks."""

from collections.abc import Callable, Sequence

from fedgh.formats import few, human_bytes
from fedgh.studies import statistics
from fedgh.studies.significance import SIGNIFICANT, enough_pairs, smallest_p
from fedgh.studies.statistics import Row
from fedgh.studies.sweep import join_seeds
from fedgh.studies.sweep_folder import Sweep
from fedgh.tables import Cell, Column, Measured, Sheet

OVER_CLIENTS, OVER_SEEDS = "*", "†"
"""Marks of significant differences in the test over clients and seeds, and in that over seeds."""

Score = Callable[[Row], float | None]
"""Function of a row that returns one of its numbers."""


def sheets(sweep: Sweep) -> list[Sheet]:
    """Return the tables of a sweep, the results first."""
    if sweep.searched:
        return [search_sheet(sweep)]
    found = [results_sheet(sweep), differences_sheet(sweep)]
    found.append(statistics.network_sheet(sweep.runs, sweep.last))
    return [sheet for sheet in found if sheet is not None]


def results_sheet(sweep: Sweep) -> Sheet:
    """Return the table of results as a paper prints it: mean ± std, the best bold, with marks."""
    rows = sweep.rows
    digits = _digits(sweep)
    accuracy = _percent_column(rows, _accuracy, lambda row: row.accuracy_std, marked=True)
    everywhere = _percent_column(
        rows, lambda row: row.global_accuracy, lambda row: row.global_accuracy_std
    )
    worst = _percent_column(rows, lambda row: row.final["accuracy_worst"])
    has_global = any(cell is not None for cell in everywhere)
    columns = [Column("method"), Column("accuracy, %", digits)]
    columns += [Column("all classes, %", digits)] if has_global else []
    columns += [Column("difference", digits, signed=True)] if _tested(sweep) else []
    columns += [Column("worst client, %", 1), Column("bytes"), Column("seeds", 0)]
    lines: list[list[Cell]] = []
    for number, row in enumerate(rows):
        cells: list[Cell] = [row.label, accuracy[number]]
        cells += [everywhere[number]] if has_global else []
        cells += [_points(row.difference)] if _tested(sweep) else []
        sent = row.bytes_per_client_round
        cells += [worst[number], None if sent is None else human_bytes(sent), row.seeds]
        lines.append(cells)
    title = f"Results on {_data(sweep)}"
    return Sheet(sweep.name, title, columns, lines, _results_note(sweep, has_global))


def differences_sheet(sweep: Sweep) -> Sheet | None:
    """Return the table of differences to the reference, with both tests; None without any."""
    rows = _tested(sweep)
    if not rows:
        return None
    columns = [
        Column("method"),
        Column("difference", signed=True),
        Column("from", signed=True),
        Column("to", signed=True),
        Column("pairs", 0),
        Column("p", 4),
        Column("p, Holm", 4),
        Column("seeds", 0),
        Column("p seeds", 4),
        Column("p seeds, Holm", 4),
    ]
    lines: list[list[Cell]] = [
        [
            row.label,
            *map(_points, (row.difference, row.difference_low, row.difference_high)),
            *(row.pairs, row.p_value, row.p_holm),
            *(row.paired_seeds, row.p_seeds, row.p_seeds_holm),
        ]
        for row in rows
    ]
    note = (
        f"Differences to {sweep.reference} in points of accuracy on the clients' own test data, "
        f"with a 95% interval (from, to). {tests_text(sweep)}"
    )
    return Sheet("differences", f"Differences to {sweep.reference}", columns, lines, note)


def search_sheet(sweep: Sweep) -> Sheet:
    """Return the table of a search: validation accuracies, and test accuracies of chosen rows."""
    rows = sweep.rows
    validation = [_measured(row.validation_accuracy, row.validation_accuracy_std) for row in rows]
    test = [
        _measured(row.accuracy, row.accuracy_std) if row.label in sweep.chosen else None
        for row in rows
    ]
    digits = _digits(sweep)
    columns = [Column("settings"), Column("chosen"), Column("validation, %", digits)]
    columns += [Column("test, %", digits), Column("seeds", 0)]
    lines: list[list[Cell]] = [
        [
            row.label,
            "yes" if row.label in sweep.chosen else "",
            validation[number],
            test[number],
            row.seeds,
        ]
        for number, row in enumerate(rows)
    ]
    note = (
        f"{_mean_text(sweep)} The settings of each method with the highest accuracy on the "
        "validation split are chosen. The accuracy on test data is shown for chosen settings only: "
        "settings that are chosen on test data would look too good."
    )
    note = "\n".join([note, *_missing(sweep)])
    return Sheet(sweep.name, f"Settings on {_data(sweep)}", columns, lines, note)


def tests_text(sweep: Sweep) -> str:
    """Return the description of both tests: their pairs, their limits and the correction."""
    rows = _tested(sweep)
    seeds = max((row.paired_seeds for row in rows), default=0)
    tests = len(rows)
    least = smallest_p(seeds)
    reach = ""
    if min(1.0, tests * least) >= SIGNIFICANT:
        corrected = f", {min(1.0, tests * least):.2g} corrected" if tests > 1 else ""
        enough = enough_pairs(tests)
        needed = "fewer comparisons" if enough is None else f"{enough} seeds"
        reach = (
            f" With {_count(seeds, 'seed')} the smallest p that is possible is {least:.2g}"
            f"{corrected}; a significant one needs {needed}."
        )
    return (
        "Both tests are sign-flip tests of paired differences.\n"
        "p: over clients and seeds. Each client of each seed is a pair. The clients of a seed are "
        "not independent, because they share a server, so this p tends to be too small.\n"
        "p seeds: over seeds. Each seed is a pair, the mean over its clients; seeds are "
        f"independent.{reach}\n"
        f"Holm: corrected by Holm's method for {_count(tests, 'comparison')}."
    )


def _results_note(sweep: Sweep, has_global: bool) -> str:
    parts = [_mean_text(sweep)]
    if has_global:
        parts.append(
            "All classes: on test data of all clients, with the same number of samples per class."
        )
    parts.append(
        "Worst client: the lowest accuracy of a client, averaged over the seeds. Bytes: sent up "
        "and down per client and round. Bold: the highest mean."
    )
    tested = _tested(sweep)
    if tested:
        pairs, seeds = max(row.pairs for row in tested), max(row.paired_seeds for row in tested)
        parts.append(
            f"Difference: to {sweep.reference}, in points. {OVER_CLIENTS}: p < {SIGNIFICANT} in a "
            f"sign-flip test paired over clients and seeds ({pairs} pairs, which are not "
            f"independent), with Holm's correction for {_count(len(tested), 'comparison')}."
        )
        parts.append(_mark_over_seeds(len(tested), seeds))
    return "\n".join([*parts, *_missing(sweep)])


def _missing(sweep: Sweep) -> list[str]:
    """Return a sentence about the runs without a result; a method that lacks one has no row."""
    if not sweep.missing:
        return []
    there = sweep.searched or sweep.reference in {row.label for row in sweep.rows}
    lost = "" if there else f" Without {sweep.reference} there are no differences."
    return [f"Runs without a result: {few(list(join_seeds(sweep.missing)))}.{lost}"]


def _mark_over_seeds(tests: int, seeds: int) -> str:
    least = min(1.0, tests * smallest_p(seeds))
    if least >= SIGNIFICANT:
        return (
            f"In the same test over {_count(seeds, 'seed')} no difference can be significant: the "
            f"smallest p that is possible, corrected, is {least:.2g}."
        )
    return f"{OVER_SEEDS}: p < {SIGNIFICANT} in the same test over the means of {seeds} seeds."


def _mean_text(sweep: Sweep) -> str:
    """Return what a mean in the table is, for one seed or several."""
    numbers = {row.seeds for row in sweep.rows}
    clients = next((len(run.clients()) for run in sweep.all_runs), 0)
    over = f"the mean over {_count(clients, 'client')}, each on its own data"
    when = (
        "after the last round"
        if sweep.last == 1
        else f"averaged over the last {sweep.last} evaluated rounds"
    )
    if numbers == {1}:
        return f"Accuracy: {over}, {when}, with one seed; so there is no standard deviation."
    count = " or ".join(map(str, sorted(numbers)))
    return f"Accuracy: mean ± standard deviation over {count} seeds of {over}, {when}."


def _percent_column(
    rows: Sequence[Row], mean: Score, std: Score = lambda _: None, marked: bool = False
) -> list[Measured | None]:
    """Return the cells of a column of shares in percent, with the highest marked as the best."""
    known = [value for row in rows if (value := mean(row)) is not None]
    best = max(known, default=None)
    return [
        _measured(
            mean(row),
            std(row),
            best=len(known) > 1 and mean(row) == best,
            marks=_marks(row) if marked else "",
        )
        for row in rows
    ]


def _measured(
    mean: float | None, std: float | None, best: bool = False, marks: str = ""
) -> Measured | None:
    if mean is None:
        return None
    return Measured(100 * mean, None if std is None else 100 * std, best, marks)


def _marks(row: Row) -> str:
    tests = {OVER_CLIENTS: row.p_holm, OVER_SEEDS: row.p_seeds_holm}
    return "".join(mark for mark, p in tests.items() if p is not None and p < SIGNIFICANT)


def _data(sweep: Sweep) -> str:
    """Return the name of the data."""
    return next((run.identity().name for run in sweep.all_runs), "no data")


def _accuracy(row: Row) -> float | None:
    return row.accuracy


def _tested(sweep: Sweep) -> list[Row]:
    """Return the rows that are compared with the reference."""
    return [row for row in sweep.rows if row.difference is not None]


def _digits(sweep: Sweep) -> int:
    """Return the digits of a percentage: without a standard deviation there is no reason for two.

    With one, it decides.
    """
    return 2 if any(row.accuracy_std is not None for row in sweep.rows) else 1


def _points(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
