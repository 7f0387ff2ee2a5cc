"""Statistics of a sweep: means over seeds, differences between methods, and intervals.

The result of a run is its accuracy in the last evaluated round, or the mean over the last few
evaluated rounds. It is never the best round, which would be selected on test data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgh.core.records import RECORDED
from fedgh.errors import RunError
from fedgh.files import write_atomic
from fedgh.runs.folder import RunFolder
from fedgh.studies.significance import holm, paired_test
from fedgh.studies.sweep import Outcome
from fedgh.tables import Cell, Column, Sheet, csv_text

Runs = dict[int, RunFolder]
"""The runs of one label, by seed."""


@dataclass(frozen=True)
class Row:
    """The results of one label of a sweep: means and sample standard deviations over its seeds."""

    label: str
    seeds: int
    accuracy: float | None
    accuracy_std: float | None  # None with one seed
    validation_accuracy: float | None
    validation_accuracy_std: float | None
    global_accuracy: float | None  # None if no run has measured it
    global_accuracy_std: float | None
    final: dict[str, float | None]  # all metrics of the last evaluated round
    difference: float | None  # to the reference: mean over seeds of the mean over clients
    difference_low: float | None  # 95% confidence interval
    difference_high: float | None
    pairs: int  # clients of all seeds that were evaluated under both
    p_value: float | None  # paired over clients and seeds
    p_holm: float | None  # the same, corrected for the number of compared labels
    paired_seeds: int
    p_seeds: float | None  # paired over seeds
    p_seeds_holm: float | None
    reached: int  # number of seeds that reached the target; the next four are over these
    rounds_to_target: float | None
    rounds_to_target_std: float | None
    bytes_to_target: float | None
    bytes_to_target_std: float | None
    bytes_per_client_round: float | None
    bytes_per_client_round_std: float | None
    paper_bytes_per_client_round: float | None
    seconds: float | None
    seconds_std: float | None


@dataclass(frozen=True)
class Interval:
    """A mean difference between accuracies with its 95% confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def points(self) -> str:
        """Text in percentage points, e.g. '+2.1 [+0.4, +3.8]'."""
        mean, low, high = (round(100 * end, 1) + 0.0 for end in (self.mean, self.low, self.high))
        return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def rows(outcome: Outcome, last: int = 1, reference: str | None = None) -> list[Row]:
    """Return a row for each label, in the order of the sweep, compared with `reference`."""
    return rows_of(by_label(outcome), last, reference)


def rows_of(labelled: Mapping[str, Runs], last: int = 1, reference: str | None = None) -> list[Row]:
    """Return a row for each label, compared with `reference`."""
    reference_runs = labelled.get(reference, {}) if reference else {}
    table = [
        _row(label, runs, {} if label == reference else reference_runs, last)
        for label, runs in labelled.items()
    ]
    tested = [row for row in table if row.p_value is not None]
    over_clients = holm([row.p_value or 0.0 for row in tested])
    over_seeds = holm([row.p_seeds or 0.0 for row in tested])
    corrected = {
        row.label: replace(row, p_holm=clients, p_seeds_holm=seeds)
        for row, clients, seeds in zip(tested, over_clients, over_seeds, strict=True)
    }
    return [corrected.get(row.label, row) for row in table]


def by_label(outcome: Outcome) -> dict[str, Runs]:
    """Return the runs of each label, in the order of the sweep."""
    labelled: dict[str, Runs] = {}
    for trial, run in outcome.runs:
        labelled.setdefault(trial.label, {})[trial.seed] = run
    return labelled


def network_sheet(labelled: Mapping[str, Runs], last: int = 1) -> Sheet | None:
    """Return the accuracy of each label for each network; None if all clients have the same one."""
    accuracies: dict[str, dict[str, list[float]]] = {}
    for label, runs in labelled.items():
        by_network = accuracies.setdefault(label, {})
        for run in runs.values():
            for client, accuracy in zip(run.clients(), client_accuracies(run, last), strict=False):
                if not np.isnan(accuracy):
                    by_network.setdefault(client.extractor, []).append(100 * float(accuracy))
    networks = list(dict.fromkeys(name for found in accuracies.values() for name in found))
    if len(networks) < 2:
        return None
    rows: list[list[Cell]] = [
        [label, *(float(np.mean(found[name])) if name in found else None for name in networks)]
        for label, found in accuracies.items()
    ]
    note = "Mean accuracy on own test data, in %, over the clients with this network and the seeds."
    return Sheet(
        "networks", "Accuracy by network", [Column("method"), *map(Column, networks)], rows, note
    )


def client_accuracies(
    run: RunFolder, last: int = 1, metric: str = "accuracy"
) -> NDArray[np.float64]:
    """Return the mean accuracy of each client over the `last` evaluated rounds; nan if unknown."""
    scores = [record.per_client.get(metric) for record in run.records()]
    evaluated = [clients for clients in scores if clients is not None]
    if not evaluated:
        return np.zeros(0)
    table = np.ma.masked_invalid(np.array(evaluated[-last:], dtype=np.float64))
    mean: NDArray[np.float64] = table.mean(axis=0).filled(np.nan)
    return mean


def mean_accuracy(run: RunFolder, last: int = 1, metric: str = "accuracy") -> float | None:
    """Return the mean of `client_accuracies` over the clients; None if none is known."""
    scores = client_accuracies(run, last, metric)
    known = scores[~np.isnan(scores)]
    return float(known.mean()) if len(known) else None


def paired(
    runs: Runs, reference: Runs, last: int = 1, metric: str = "accuracy"
) -> list[NDArray[np.float64]]:
    """Return each client's gain over the reference, one array for each seed of both.

    Clients can be paired: with the same seed, a client has the same data, initial weights and
    batches under both methods. Raise RunError if two runs have no evaluated client in common.
    """
    pairs = []
    for seed in (seed for seed in runs if seed in reference):
        ours, theirs = (client_accuracies(by[seed], last, metric) for by in (runs, reference))
        if ours.shape != theirs.shape or np.isnan(ours - theirs).all():
            raise RunError(
                f"{runs[seed].path} and {reference[seed].path} have no evaluated client in common; "
                "delete the one that is damaged, and it is run again"
            )
        pairs.append((ours - theirs)[~np.isnan(ours - theirs)])
    return pairs


def mean_interval(pairs: Sequence[NDArray[np.float64]]) -> Interval:
    """Return the mean of the differences of all seeds, with a 95% confidence interval.

    `pairs` has for each seed the differences of its clients, each between -1 and 1.

    The interval is the wider of two t-intervals. The first is over the means of the seeds: clients
    of a seed share a server, so only seeds are independent. The second is over the clients within
    seeds, as if seeds did not differ. It prevents a narrow interval when a few seeds agree by
    chance, and it is the only one for a single seed.
    """
    from scipy.stats import t  # slow to import, and only needed here

    means = [float(differences.mean()) for differences in pairs]
    sizes = [len(differences) for differences in pairs]
    mean = float(np.mean(means))
    errors: list[tuple[float, int]] = []  # standard errors of the mean, and degrees of freedom
    if len(pairs) > 1:
        errors.append((float(np.var(means, ddof=1) / len(means)) ** 0.5, len(pairs) - 1))
    freedom = sum(sizes) - len(sizes)
    if freedom:
        scatter = (
            sum(float(((differences - differences.mean()) ** 2).sum()) for differences in pairs)
            / freedom
        )
        variance = scatter * sum(1 / size for size in sizes) / len(sizes) ** 2
        errors.append((variance**0.5, freedom))
    half_width = max(
        (error * float(t.ppf(0.975, freedom)) for error, freedom in errors), default=2.0
    )
    return Interval(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))


@dataclass(frozen=True)
class PairedLead:
    """The mean lead of one method over another with its standard error."""

    mean: float
    error: float | None  # standard error; None if there is only one pair
    over: str  # sample of the error: "3 seeds", or "20 clients" of a single seed


def lead_over(
    ours: Mapping[int, NDArray[np.float64]], theirs: Mapping[int, NDArray[np.float64]]
) -> PairedLead | None:
    """Return the mean lead over the seeds of both; None if no client was evaluated in both.

    Both arguments map seeds to the scores of the clients. With several seeds, each seed is one
    observation, the mean over its clients: they share partition, weights and server. The clients of
    a single seed are treated as independent, so that their standard error is too small.
    """
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    leads = [each[~np.isnan(each)] for each in differences]
    leads = [each for each in leads if len(each)]
    if not leads:
        return None
    means = np.array([each.mean() for each in leads])
    sample, unit = (means, "seed") if len(means) > 1 else (leads[0], "client")
    count = len(sample)
    error = float(sample.std(ddof=1) / count**0.5) if count > 1 else None
    return PairedLead(float(means.mean()), error, f"{count} {unit}{'s' if count > 1 else ''}")


def write(table: Sequence[Any], outcome: Outcome, path: Path, about: dict[str, Any]) -> None:
    """Write rows (dataclasses) to `path`.csv and `path`.json; JSON also has all summaries."""
    write_atomic(path.with_suffix(".csv"), rows_csv(table).encode())
    document = {
        **about,
        "rows": [asdict(row) for row in table],
        "runs": [
            {"label": trial.label, "folder": run.path.name, **run.summary().model_dump()}
            for trial, run in outcome.runs
        ],
        "missing": outcome.missing,
    }
    content = json.dumps(document, indent=2, allow_nan=False)
    write_atomic(path.with_suffix(".json"), content.encode() + b"\n")


def rows_csv(table: Sequence[Any]) -> str:
    """Return rows (dataclasses) as CSV, with all numbers in full precision."""
    lines = [_flat(asdict(row)) for row in table]
    return csv_text([*lines[:1], *(line.values() for line in lines)])


def _flat(row: dict[str, Any]) -> dict[str, Cell]:
    """Return one cell per number: an interval `gain` becomes gain_mean, gain_low and gain_high."""
    cells: dict[str, Cell] = {}
    for key, value in row.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        cells |= {f"{key}_{part}".removesuffix("_"): cell for part, cell in parts}
    return cells


def _row(label: str, runs: Runs, reference: Runs, last: int) -> Row:
    summaries = [run.summary() for run in runs.values()]
    means = {
        metric: [mean_accuracy(run, last, metric) for run in runs.values()]
        for metric in ("accuracy", "validation_accuracy", "global_accuracy")
    }
    pairs = paired(runs, reference, last)

    def over_seeds(name: str, values: Sequence[float | None] | None = None) -> dict[str, Any]:
        """Return mean and standard deviation of the values that are not None or nan."""
        known = [getattr(summary, name) for summary in summaries] if values is None else values
        known = [value for value in known if value is not None and value == value]
        return {
            name: float(np.mean(known)) if known else None,
            f"{name}_std": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        }

    def final(name: str) -> list[float | None]:
        return [summary.final.get(name) for summary in summaries]

    paper = over_seeds("paper_bytes_per_client_round")
    return Row(
        label=label,
        seeds=len(runs),
        **over_seeds("accuracy", means["accuracy"]),
        **over_seeds("validation_accuracy", means["validation_accuracy"]),
        **over_seeds("global_accuracy", means["global_accuracy"]),
        final={name: over_seeds(name, final(name))[name] for name in RECORDED},
        **_compared(pairs),
        reached=sum(summary.rounds_to_target is not None for summary in summaries),
        **over_seeds("rounds_to_target"),
        **over_seeds("bytes_to_target"),
        **over_seeds("bytes_per_client_round"),
        paper_bytes_per_client_round=paper["paper_bytes_per_client_round"],
        **over_seeds("seconds"),
    )


def _compared(pairs: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    """Return the differences to the reference and their tests; None if there is no pair."""
    numbers = ("difference", "difference_low", "difference_high", "p_value", "p_seeds")
    not_tested = {"p_holm": None, "p_seeds_holm": None}  # these depend on all rows
    if not pairs:
        return {**dict.fromkeys(numbers), **not_tested, "pairs": 0, "paired_seeds": 0}
    differences, interval = np.concatenate(pairs), mean_interval(pairs)
    by_seed = np.array([each.mean() for each in pairs])
    tests = paired_test(differences), paired_test(by_seed)
    known = (interval.mean, interval.low, interval.high, *tests)
    counts = {"pairs": len(differences), "paired_seeds": len(pairs)}
    return {**dict(zip(numbers, known, strict=True)), **not_tested, **counts}
