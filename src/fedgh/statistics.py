"""What the runs of a sweep say together: means over seeds, and whether a difference is one.

A run's result is its accuracy in the last evaluated round, or the mean of the last few; never
the best over rounds, which would be chosen on test data.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgh.core.checkpoint import write_atomic
from fedgh.core.runs import RunFolder
from fedgh.sweep import Outcome

RESAMPLES = 9999


@dataclass(frozen=True)
class Row:
    """One label of a sweep, over all its seeds. Times and bytes are means."""

    label: str
    seeds: int
    accuracy: float
    accuracy_std: float | None  # over seeds; None with one seed
    evaluation_accuracy: float
    difference: float | None  # to the reference, over clients and seeds
    p_value: float | None
    reached: int  # how many seeds reached the target
    rounds_to_target: float | None
    bytes_to_target: float | None
    bytes_per_client_round: float
    paper_bytes_per_client_round: float | None
    seconds: float


def rows(outcome: Outcome, last: int = 1, reference: str | None = "fedgh") -> list[Row]:
    """A row for each label, in the order of the sweep, compared with `reference`."""
    by_label: dict[str, list[tuple[int, RunFolder]]] = {}
    for trial, run in outcome.runs:
        by_label.setdefault(trial.label, []).append((trial.seed, run))
    scores = {
        label: {seed: client_accuracies(run, last) for seed, run in runs}
        for label, runs in by_label.items()
    }
    compared = scores.get(reference, {}) if reference else {}
    return [
        _row(label, [run for _, run in runs], scores[label], last, compared, label == reference)
        for label, runs in by_label.items()
    ]


def client_accuracies(run: RunFolder, last: int, metric: str = "accuracy") -> NDArray[np.float64]:
    """Each client's accuracy, mean over the last evaluated rounds."""
    evaluated = [r[f"{metric}_per_client"] for r in run.records() if r["accuracy"] is not None]
    table = np.array(evaluated[-last:], dtype=np.float64)  # a score nobody has taken is nan
    mean: NDArray[np.float64] = np.nanmean(table, axis=0)
    return mean


def paired_test(differences: NDArray[np.float64]) -> float:
    """The p-value of a mean difference of zero, by flipping signs at random.

    The pairs are a client under two methods with the same data, seed and batches. Clients of
    one run share a server, so the pairs are not quite independent: read a p-value as a hint.
    """
    from scipy.stats import permutation_test  # slow to import, and only needed here

    if not differences.any():
        return 1.0
    test = permutation_test(
        (differences,),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def write(table: list[Row], outcome: Outcome, path: Path) -> None:
    """The table as `path`.csv and `path`.json, the latter with what could not be run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, table))
    write_atomic(path.with_suffix(".csv"), text.getvalue().encode())
    document = {"rows": [asdict(row) for row in table], "impossible": outcome.impossible}
    write_atomic(path.with_suffix(".json"), json.dumps(document, indent=2).encode() + b"\n")


def _row(
    label: str,
    runs: Sequence[RunFolder],
    scores: dict[int, NDArray[np.float64]],
    last: int,
    compared: dict[int, NDArray[np.float64]],
    is_reference: bool,
) -> Row:
    summaries: list[dict[str, Any]] = [run.summary() or {} for run in runs]
    accuracy = [float(np.nanmean(each)) for each in scores.values()]
    evaluation = [client_accuracies(run, last, "evaluation_accuracy").mean() for run in runs]
    reached = [summary for summary in summaries if summary["rounds_to_target"] is not None]
    pairs = [scores[seed] - compared[seed] for seed in scores if seed in compared]
    differences = np.concatenate(pairs) if pairs and not is_reference else None

    def mean(key: str, among: list[dict[str, Any]] = summaries) -> float | None:
        values = [summary[key] for summary in among if summary[key] is not None]
        return float(np.mean(values)) if values else None

    return Row(
        label=label,
        seeds=len(runs),
        accuracy=float(np.mean(accuracy)),
        accuracy_std=float(np.std(accuracy, ddof=1)) if len(accuracy) > 1 else None,
        evaluation_accuracy=float(np.mean(evaluation)),
        difference=None if differences is None else float(np.nanmean(differences)),
        p_value=None if differences is None else paired_test(differences[~np.isnan(differences)]),
        reached=len(reached),
        rounds_to_target=mean("rounds_to_target", reached),
        bytes_to_target=mean("bytes_to_target", reached),
        bytes_per_client_round=mean("bytes_per_client_round") or 0.0,
        paper_bytes_per_client_round=mean("paper_bytes_per_client_round"),
        seconds=mean("seconds") or 0.0,
    )
