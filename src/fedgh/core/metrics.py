"""Metrics of a client's model on samples, and their spread over clients.

A new metric needs a function and a line in `METRICS`; it then appears in the record of every
evaluated round, in summaries, sweeps, trackers and reports.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor

Samples = Literal["test", "validation", "all classes"]
"""Own test split, own validation split, or balanced test samples of all clients."""


@dataclass(frozen=True)
class Evaluation:
    """The confusion matrix of a model on samples, and its mean cross-entropy."""

    counts: Tensor  # [true, predicted]
    loss: float  # mean over the samples
    batch_accuracies: tuple[float, ...] = ()  # of each batch, in order


def accuracy(evaluation: Evaluation) -> float:
    """Return the share of samples that are classified correctly."""
    return int(evaluation.counts.diagonal().sum()) / int(evaluation.counts.sum())


def balanced_accuracy(evaluation: Evaluation) -> float:
    """Return the mean recall of the classes that occur, so that each class has the same weight."""
    samples = evaluation.counts.sum(1)
    occurs = samples > 0
    return float((evaluation.counts.diagonal()[occurs].double() / samples[occurs]).mean())


def macro_f1(evaluation: Evaluation) -> float:
    """Return the mean F1 score of the classes that occur or are predicted."""
    right = evaluation.counts.diagonal().double()
    both = evaluation.counts.sum(0) + evaluation.counts.sum(1)  # occurrences and predictions
    return float((2 * right / both)[both > 0].mean())


def loss(evaluation: Evaluation) -> float:
    """Return the mean cross-entropy."""
    return evaluation.loss


@dataclass(frozen=True)
class Metric:
    """A function of an evaluation, the samples that it applies to, and its largest value."""

    of: Callable[[Evaluation], float]
    on: Samples = "test"
    largest: float = 1.0

    def possible(self, *scores: float) -> bool:
        """Return True if all scores, which may come from a remote party, are possible values."""
        return all(0 <= score <= self.largest for score in scores)


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy),
    "validation_accuracy": Metric(accuracy, on="validation"),
    "balanced_accuracy": Metric(balanced_accuracy),
    "macro_f1": Metric(macro_f1),
    "loss": Metric(loss, largest=inf),
    "global_accuracy": Metric(accuracy, on="all classes"),
}

NEEDED = ("accuracy", "validation_accuracy")
"""Metrics that every evaluation needs; with privacy, clients send no other metrics of theirs."""


def own_metrics() -> list[str]:
    """Return the metrics on clients' own data."""
    return [name for name, metric in METRICS.items() if metric.on != "all classes"]


def scores(evaluation: Evaluation, on: Samples) -> dict[str, float]:
    """Return the metrics that apply to these samples."""
    return {name: metric.of(evaluation) for name, metric in METRICS.items() if metric.on == on}


SPREADS: dict[str, Callable[[Tensor], Tensor]] = {
    "std": lambda scores: scores.std(correction=0),
    "p10": lambda scores: scores.quantile(0.1),
    "worst": torch.min,
}
"""Measures of the spread over clients: standard deviation, 10th percentile, minimum."""


def spread(scores: Tensor) -> dict[str, float | None]:
    """Return measures of the spread of accuracies, over the clients that have one."""
    known = scores[~scores.isnan()]
    return {name: float(of(known)) if len(known) else None for name, of in SPREADS.items()}
