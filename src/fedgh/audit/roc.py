"""How well scores tell members from others."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """A number for each candidate, and which sample it was: one may be met several times."""

    values: Tensor  # [m]
    samples: Tensor  # [m]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Auc:
    """The area under the curve: how often a member scores higher; 0.5 is guessing."""

    value: float
    low: float
    high: float


def auc(members: Scores, others: Scores) -> Auc:
    """With the 95% interval of DeLong et al. (1988); a tie counts half.

    Scores of the same sample are not independent: each sample is a cluster (Obuchowski 1997).
    """
    m, n = len(members), len(others)
    both = np.concatenate([members.values.numpy(), others.values.numpy()])
    ranks = rankdata(both)
    of_member = (ranks[:m] - rankdata(both[:m])) / n  # the share of others that it beats
    of_other = 1 - (ranks[m:] - rankdata(both[m:])) / m  # the share of members that beat it
    value = float(of_member.mean())
    variance = _variance(of_member, members) + _variance(of_other, others)
    reach = 1.96 * math.sqrt(variance)
    return Auc(value, max(0.0, value - reach), min(1.0, value + reach))


def _variance(shares: NDArray[np.float64], scores: Scores) -> float:
    """Of the mean of these shares, which come in clusters of the same sample."""
    clusters = scores.samples.unique(return_inverse=True)[1].numpy()
    sums = np.bincount(clusters, shares - shares.mean())
    if len(sums) < 2:
        return 0.0
    return float(len(sums) / (len(sums) - 1) * (sums**2).sum() / len(shares) ** 2)


def tpr_at(members: Tensor, others: Tensor, fpr: float) -> float:
    """The share of members found when at most the share `fpr` of the others is taken for one."""
    allowed = int(fpr * len(others))
    threshold = others.sort(descending=True).values[allowed]
    return float((members > threshold).double().mean())
