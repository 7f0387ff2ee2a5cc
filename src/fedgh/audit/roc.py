"""Measures of how well scores separate members from others: AUC and true positive rate."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """A score for each candidate; the same sample may be a candidate several times."""

    values: Tensor  # [m]
    samples: Tensor  # [m], the index of the candidate's sample

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Auc:
    """The area under the ROC curve: how often a member scores higher; 0.5 is guessing."""

    value: float
    low: float  # 95% confidence interval
    high: float


def auc(members: Scores, others: Scores) -> Auc:
    """Return the AUC with the 95% interval of DeLong et al. (1988); a tie counts half.

    Scores of the same sample are not independent: each sample is a cluster (Obuchowski 1997).
    """
    m, n = len(members), len(others)
    both = np.concatenate([members.values.numpy(), others.values.numpy()])
    ranks = rankdata(both)
    of_member = (ranks[:m] - rankdata(both[:m])) / n  # the share of others that score lower
    of_other = 1 - (ranks[m:] - rankdata(both[m:])) / m  # the share of members that score higher
    value = float(of_member.mean())
    variance = _variance(of_member, members) + _variance(of_other, others)
    half_width = 1.96 * math.sqrt(variance)
    return Auc(value, max(0.0, value - half_width), min(1.0, value + half_width))


def _variance(shares: NDArray[np.float64], scores: Scores) -> float:
    """Return the variance of the mean of these shares, which are clustered by sample."""
    clusters = scores.samples.unique(return_inverse=True)[1].numpy()
    sums = np.bincount(clusters, shares - shares.mean())
    if len(sums) < 2:
        return 0.0
    return float(len(sums) / (len(sums) - 1) * (sums**2).sum() / len(shares) ** 2)


def tpr_at(members: Tensor, others: Tensor, fpr: float) -> float:
    """Return the share of members detected at a false positive rate of at most `fpr`."""
    allowed = int(fpr * len(others))
    threshold = others.sort(descending=True).values[allowed]
    return float((members > threshold).double().mean())
