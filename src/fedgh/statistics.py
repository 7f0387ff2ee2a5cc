"""What the runs of a sweep say together: means over seeds, and whether a difference is one.

A run's result is its accuracy in the last evaluated round, or the mean of the last few; never
the best over rounds, which would be chosen on test data.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgh.core.disk import write_atomic
from fedgh.core.runs import RunFolder
from fedgh.paper.sheets import csv_text
from fedgh.sweep import Outcome

RESAMPLES = 9999


@dataclass(frozen=True)
class Row:
    """One label of a sweep: means over its seeds, and sample standard deviations."""

    label: str
    seeds: int
    accuracy: float | None
    accuracy_std: float | None  # None with one seed
    evaluation_accuracy: float | None
    evaluation_accuracy_std: float | None
    global_accuracy: float | None  # on all classes; None where no run has measured it
    global_accuracy_std: float | None
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


def rows(outcome: Outcome, last: int = 1, reference: str | None = None) -> list[Row]:
    """A row for each label, in the order of the sweep, compared with the label `reference`."""
    by_label: dict[str, dict[int, RunFolder]] = {}
    for trial, run in outcome.runs:
        by_label.setdefault(trial.label, {})[trial.seed] = run
    compared = by_label.get(reference, {}) if reference else {}
    return [
        _row(label, runs, {} if label == reference else compared, last)
        for label, runs in by_label.items()
    ]


def client_accuracies(run: RunFolder, last: int, metric: str = "accuracy") -> NDArray[np.float64]:
    """Each client's accuracy, mean over the last rounds that measured it; nan where none did."""
    scores = [record.get(f"{metric}_per_client") for record in run.records()]
    evaluated = [each for each in scores if each is not None]
    if not evaluated:
        return np.zeros(0)
    table = np.ma.masked_invalid(np.array(evaluated[-last:], dtype=np.float64))
    mean: NDArray[np.float64] = table.mean(axis=0).filled(np.nan)
    return mean


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


def write(table: list[Row], outcome: Outcome, path: Path, about: dict[str, Any]) -> None:
    """The table as `path`.csv and `path`.json; the latter with every run behind it."""
    content = csv_text([[field.name for field in fields(Row)], *map(astuple, table)])
    write_atomic(path.with_suffix(".csv"), content.encode())
    document = {
        **about,
        "rows": [asdict(row) for row in table],
        "runs": [
            {"label": trial.label, "folder": run.path.name, **(run.summary() or {})}
            for trial, run in outcome.runs
        ],
        "missing": outcome.missing,
    }
    content = json.dumps(document, indent=2, allow_nan=False)
    write_atomic(path.with_suffix(".json"), content.encode() + b"\n")


def _row(label: str, runs: dict[int, RunFolder], compared: dict[int, RunFolder], last: int) -> Row:
    summaries: list[dict[str, Any]] = [run.summary() or {} for run in runs.values()]
    accuracy = {seed: client_accuracies(run, last) for seed, run in runs.items()}
    others = {
        metric: [_mean(client_accuracies(run, last, metric)) for run in runs.values()]
        for metric in ("evaluation_accuracy", "global_accuracy")
    }
    pairs = [
        accuracy[seed] - client_accuracies(compared[seed], last)
        for seed in runs
        if seed in compared
    ]
    differences = np.concatenate(pairs) if pairs else np.zeros(0)
    differences = differences[~np.isnan(differences)]

    def over_seeds(name: str, values: Sequence[float | None] | None = None) -> dict[str, Any]:
        """The mean and the standard deviation of what is known."""
        known = [summary[name] for summary in summaries] if values is None else values
        known = [value for value in known if value is not None and value == value]
        return {
            name: float(np.mean(known)) if known else None,
            f"{name}_std": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        }

    paper = over_seeds("paper_bytes_per_client_round")
    return Row(
        label=label,
        seeds=len(runs),
        **over_seeds("accuracy", [_mean(each) for each in accuracy.values()]),
        **over_seeds("evaluation_accuracy", others["evaluation_accuracy"]),
        **over_seeds("global_accuracy", others["global_accuracy"]),
        difference=float(differences.mean()) if len(differences) else None,
        p_value=paired_test(differences) if len(differences) else None,
        reached=sum(summary["rounds_to_target"] is not None for summary in summaries),
        **over_seeds("rounds_to_target"),
        **over_seeds("bytes_to_target"),
        **over_seeds("bytes_per_client_round"),
        paper_bytes_per_client_round=paper["paper_bytes_per_client_round"],
        **over_seeds("seconds"),
    )


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
