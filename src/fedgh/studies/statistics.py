"""What the runs of a sweep say together: means over seeds, and whether a difference is one.

A run's result is its accuracy in the last evaluated round, or the mean of the last few; never
the best over rounds, which would be chosen on test data.
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
from fedgh.tables import Cell, csv_text

RESAMPLES = 9999

Runs = dict[int, RunFolder]
"""The runs of one label, by seed."""


@dataclass(frozen=True)
class Row:
    """One label of a sweep: means over its seeds, and sample standard deviations."""

    label: str
    seeds: int
    accuracy: float | None
    accuracy_std: float | None  # None with one seed
    validation_accuracy: float | None
    validation_accuracy_std: float | None
    global_accuracy: float | None  # on all classes; None where no run has measured it
    global_accuracy_std: float | None
    final: dict[str, float | None]  # all metrics of the last evaluated round, and their spread
    difference: float | None  # to the reference, over clients and seeds
    p_value: float | None
    reached: int  # how many seeds reached the target; the next four are over these
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
    """A mean difference between accuracies, and the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def points(self) -> str:
        """In points: '+2.1 [+0.4, +3.8]'."""
        mean, low, high = (round(100 * end, 1) + 0.0 for end in (self.mean, self.low, self.high))
        return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def rows(outcome: Outcome, last: int = 1, reference: str | None = None) -> list[Row]:
    """A row for each label, in the order of the sweep, compared with the label `reference`."""
    labelled = by_label(outcome)
    compared = labelled.get(reference, {}) if reference else {}
    return [
        _row(label, runs, {} if label == reference else compared, last)
        for label, runs in labelled.items()
    ]


def by_label(outcome: Outcome) -> dict[str, Runs]:
    """The runs of every label, in the order of the sweep."""
    found: dict[str, Runs] = {}
    for trial, run in outcome.runs:
        found.setdefault(trial.label, {})[trial.seed] = run
    return found


def client_accuracies(
    run: RunFolder, last: int = 1, metric: str = "accuracy"
) -> NDArray[np.float64]:
    """Each client's accuracy, mean over the last rounds that measured it; nan where none did."""
    scores = [record.per_client.get(metric) for record in run.records()]
    evaluated = [each for each in scores if each is not None]
    if not evaluated:
        return np.zeros(0)
    table = np.ma.masked_invalid(np.array(evaluated[-last:], dtype=np.float64))
    mean: NDArray[np.float64] = table.mean(axis=0).filled(np.nan)
    return mean


def paired(
    runs: Runs, compared: Runs, last: int = 1, metric: str = "accuracy"
) -> list[NDArray[np.float64]]:
    """By how much each client does better than in the runs compared, for every seed of both.

    The same client under two methods has the same data, first weights and batches.
    """
    pairs = []
    for seed in (seed for seed in runs if seed in compared):
        ours, theirs = (client_accuracies(by[seed], last, metric) for by in (runs, compared))
        if ours.shape != theirs.shape or np.isnan(ours - theirs).all():
            raise RunError(
                f"{runs[seed].path} and {compared[seed].path} have no client in common that is "
                "judged; delete the one that is damaged, and it is run again"
            )
        pairs.append((ours - theirs)[~np.isnan(ours - theirs)])
    return pairs


def mean_interval(pairs: Sequence[NDArray[np.float64]]) -> Interval:
    """The mean difference between accuracies, given those of each seed's clients.

    Of two 95% intervals it is the wider one. The first is Student's over the means of the seeds:
    clients of one seed share a server, so only seeds are independent. The second is Student's over
    clients within seeds, as if seeds did not differ; it keeps a few seeds that agree by chance from
    looking certain, and is all there is with one seed. A difference is between -1 and 1.
    """
    from scipy.stats import t  # slow to import, and only needed here

    means = [float(of_seed.mean()) for of_seed in pairs]
    sizes = [len(of_seed) for of_seed in pairs]
    mean = float(np.mean(means))
    errors: list[tuple[float, int]] = []  # standard errors of the mean, and degrees of freedom
    if len(pairs) > 1:
        errors.append((float(np.var(means, ddof=1) / len(means)) ** 0.5, len(pairs) - 1))
    freedom = sum(sizes) - len(sizes)
    if freedom:
        scatter = sum(float(((of_seed - of_seed.mean()) ** 2).sum()) for of_seed in pairs) / freedom
        variance = scatter * sum(1 / size for size in sizes) / len(sizes) ** 2
        errors.append((variance**0.5, freedom))
    reach = max((error * float(t.ppf(0.975, freedom)) for error, freedom in errors), default=2.0)
    return Interval(mean, max(-1.0, mean - reach), min(1.0, mean + reach))


@dataclass(frozen=True)
class Paired:
    """How far one method is ahead of another, and how sure that is."""

    mean: float
    error: float | None  # standard error; None where there is one pair only
    over: str  # what the error is taken over: "3 seeds", or the clients of the only seed


def lead_over(
    ours: Mapping[int, NDArray[np.float64]], theirs: Mapping[int, NDArray[np.float64]]
) -> Paired | None:
    """The mean lead over the seeds that both have; None where no client was judged in both.

    Both map seeds to the scores of the clients. The clients of a seed share partition, weights and
    server, so that with several seeds each seed counts as one observation: the mean over its
    clients. The clients of a single seed are taken for independent, which flatters.
    """
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    known = [each[~np.isnan(each)] for each in differences]
    known = [each for each in known if len(each)]
    if not known:
        return None
    means = np.array([each.mean() for each in known])
    sample, unit = (means, "seed") if len(means) > 1 else (known[0], "client")
    count = len(sample)
    error = float(sample.std(ddof=1) / count**0.5) if count > 1 else None
    return Paired(float(means.mean()), error, f"{count} {unit}{'s' if count > 1 else ''}")


def paired_test(differences: NDArray[np.float64]) -> float:
    """The p-value of a mean difference of zero, by flipping signs at random.

    The pairs are a client under two methods with the same data, seed and batches. Clients of
    one run share a server, so the pairs are not quite independent: read a p-value as a hint.
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
    """The p-value of methods [rows] that are all alike, from how far apart their means are.

    Within a client [column] the methods change places at random, so that comparing the lowest of
    many with the highest is not taken for a comparison of two.
    """
    if scores.shape[1] < 2:
        return 1.0
    rng = np.random.default_rng(0)

    def spread(table: NDArray[np.float64]) -> float:
        means = table.mean(axis=1)
        return float(means.max() - means.min())

    found = spread(scores) - 1e-12  # the same numbers may add up differently
    extreme = sum(spread(rng.permuted(scores, axis=0)) >= found for _ in range(RESAMPLES))
    return (extreme + 1) / (RESAMPLES + 1)


def write(table: Sequence[Any], outcome: Outcome, path: Path, about: dict[str, Any]) -> None:
    """Rows (dataclasses) as `path`.csv and `path`.json; the latter with every run behind them."""
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
    """One cell for each number: an interval `gain` is gain_mean, gain_low and gain_high."""
    out: dict[str, Cell] = {}
    for key, value in row.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        out |= {f"{key}_{part}".removesuffix("_"): cell for part, cell in parts}
    return out


def _row(label: str, runs: Runs, compared: Runs, last: int) -> Row:
    summaries = [run.summary() for run in runs.values()]
    accuracy = [client_accuracies(run, last) for run in runs.values()]
    others = {
        metric: [_mean(client_accuracies(run, last, metric)) for run in runs.values()]
        for metric in ("validation_accuracy", "global_accuracy")
    }
    pairs = paired(runs, compared, last)
    differences = np.concatenate(pairs) if pairs else np.zeros(0)

    def over_seeds(name: str, values: Sequence[float | None] | None = None) -> dict[str, Any]:
        """The mean and the standard deviation of what is known."""
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
