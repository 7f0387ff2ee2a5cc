"""Metrics: how well a client's model does on some samples, and how that differs between clients.

A new metric is a function and a line in `METRICS`; it is then in the record of every evaluated
round, in summaries, comparisons, trackers and reports.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor

Samples = Literal["test", "validation", "all classes"]
"""Own test data, own validation data, or test data of all clients with every class alike."""


@dataclass(frozen=True)
class Evaluation:
    """A model's answers: how often each class was taken for which, and their cross-entropy."""

    counts: Tensor  # [true, predicted]
    loss: float  # mean over the samples


def accuracy(judged: Evaluation) -> float:
    """Share of the samples that are classified correctly."""
    return int(judged.counts.diagonal().sum()) / int(judged.counts.sum())


def balanced_accuracy(judged: Evaluation) -> float:
    """Mean recall of the classes that occur: a frequent class counts no more than a rare one."""
    samples = judged.counts.sum(1)
    occurs = samples > 0
    return float((judged.counts.diagonal()[occurs].double() / samples[occurs]).mean())


def macro_f1(judged: Evaluation) -> float:
    """Mean F1 score of the classes that occur or are predicted."""
    right = judged.counts.diagonal().double()
    both = judged.counts.sum(0) + judged.counts.sum(1)  # occurrences and predictions
    return float((2 * right / both)[both > 0].mean())


def loss(judged: Evaluation) -> float:
    """Mean cross-entropy."""
    return judged.loss


@dataclass(frozen=True)
class Metric:
    """A function of a model's answers, and the samples that these are about."""

    of: Callable[[Evaluation], float]
    on: Samples = "test"
    largest: float = 1.0

    def possible(self, *scores: float) -> bool:
        """Tell if scores that another party sends can be some."""
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
"""Metrics without which a client is not judged; private clients tell no others of their own."""


def own_metrics() -> list[str]:
    """Return the metrics on clients' own data."""
    return [name for name, metric in METRICS.items() if metric.on != "all classes"]


def scores(judged: Evaluation, on: Samples) -> dict[str, float]:
    """Return the metrics about these samples."""
    return {name: metric.of(judged) for name, metric in METRICS.items() if metric.on == on}


SPREADS: dict[str, Callable[[Tensor], Tensor]] = {
    "std": lambda scores: scores.std(correction=0),
    "p10": lambda scores: scores.quantile(0.1),
    "worst": torch.min,
}
"""How accuracy differs between clients: standard deviation, 10th percentile, lowest."""


def spread(scores: Tensor) -> dict[str, float | None]:
    """Return how accuracies differ between the clients that have one."""
    known = scores[~scores.isnan()]
    return {name: float(of(known)) if len(known) else None for name, of in SPREADS.items()}
