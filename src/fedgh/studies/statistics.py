"""Statistics of a sweep: means over seeds, intervals, and tests of differences.

The result of a run is its accuracy in the last evaluated round, or the mean over the last few
evaluated rounds. It is never the best round, which would be selected on test data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgh.core.records import RECORDED
from fedgh.errors import RunError
from fedgh.files import write_atomic
from fedgh.runs.folder import RunFolder
from fedgh.studies.sweep import Outcome
from fedgh.tables import Cell, Column, Sheet, csv_text

RESAMPLES = 9999
"""Number of random resamples of a test."""

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
    difference: float | None  # mean difference to the reference over clients and seeds
    p_value: float | None
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
    labelled = by_label(outcome)
    reference_runs = labelled.get(reference, {}) if reference else {}
    return [
        _row(label, runs, {} if label == reference else reference_runs, last)
        for label, runs in labelled.items()
    ]


def by_label(outcome: Outcome) -> dict[str, Runs]:
    """Return the runs of each label, in the order of the sweep."""
    labelled: dict[str, Runs] = {}
    for trial, run in outcome.runs:
        labelled.setdefault(trial.label, {})[trial.seed] = run
    return labelled


def network_sheet(outcome: Outcome, last: int = 1) -> Sheet | None:
    """Return the accuracy of each label for each network; None if all clients have the same one."""
    accuracies: dict[str, dict[str, list[float]]] = {}
    for label, runs in by_label(outcome).items():
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


def paired_test(differences: NDArray[np.float64]) -> float:
    """Return the p-value of the hypothesis that the mean difference is zero (sign-flip test).

    A difference is that of one client under two methods with the same data, seed and batches. The
    clients of a run share a server, so differences are not independent: p is only a rough guide.
    """
    from scipy.stats import permutation_test  # slow to import, and only needed here

    if len(differences) < 2 or not differences.any():
        return 1.0
    test = permutation_test(
        (differences,),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        batch=500,  # all resamples at once would take gigabytes
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def range_test(scores: NDArray[np.float64]) -> float:
    """Return the p-value of the hypothesis that all methods [rows] are equal (permutation test).

    The statistic is the range of the methods' means. Scores are permuted within each client
    [column], so the test accounts for choosing the lowest and the highest of many methods.
    """
    if scores.shape[1] < 2:
        return 1.0
    rng = np.random.default_rng(0)

    def range_of_means(table: NDArray[np.float64]) -> float:
        means = table.mean(axis=1)
        return float(means.max() - means.min())

    observed = range_of_means(scores) - 1e-12  # tolerance for the order of additions
    permuted = (rng.permuted(scores, axis=0) for _ in range(RESAMPLES))
    extreme = sum(range_of_means(table) >= observed for table in permuted)
    return (extreme + 1) / (RESAMPLES + 1)


def write(table: Sequence[Any], outcome: Outcome, path: Path, about: dict[str, Any]) -> None:
    """Write rows (dataclasses) to `path`.csv and `path`.json; JSON also has all summaries."""
    rows = [asdict(row) for row in table]
    lines = [_flat(row) for row in rows]
    content = csv_text([*lines[:1], *(line.values() for line in lines)])
    write_atomic(path.with_suffix(".csv"), content.encode())
    document = {
        **about,
        "rows": rows,
        "runs": [
            {"label": trial.label, "folder": run.path.name, **run.summary().model_dump()}
            for trial, run in outcome.runs
        ],
        "missing": outcome.missing,
    }
    content = json.dumps(document, indent=2, allow_nan=False)
    write_atomic(path.with_suffix(".json"), content.encode() + b"\n")


def _flat(row: dict[str, Any]) -> dict[str, Cell]:
    """Return one cell per number: an interval `gain` becomes gain_mean, gain_low and gain_high."""
    cells: dict[str, Cell] = {}
    for key, value in row.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        cells |= {f"{key}_{part}".removesuffix("_"): cell for part, cell in parts}
    return cells


def _row(label: str, runs: Runs, reference: Runs, last: int) -> Row:
    summaries = [run.summary() for run in runs.values()]
    accuracy = [client_accuracies(run, last) for run in runs.values()]
    others = {
        metric: [_mean(client_accuracies(run, last, metric)) for run in runs.values()]
        for metric in ("validation_accuracy", "global_accuracy")
    }
    pairs = paired(runs, reference, last)
    differences = np.concatenate(pairs) if pairs else np.zeros(0)

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
        **over_seeds("accuracy", [_mean(each) for each in accuracy]),
        **over_seeds("validation_accuracy", others["validation_accuracy"]),
        **over_seeds("global_accuracy", others["global_accuracy"]),
        final={name: over_seeds(name, final(name))[name] for name in RECORDED},
        difference=float(differences.mean()) if len(differences) else None,
        p_value=paired_test(differences) if len(differences) else None,
        reached=sum(summary.rounds_to_target is not None for summary in summaries),
        **over_seeds("rounds_to_target"),
        **over_seeds("bytes_to_target"),
        **over_seeds("bytes_per_client_round"),
        paper_bytes_per_client_round=paper["paper_bytes_per_client_round"],
        **over_seeds("seconds"),
    )


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
