"""Tests of differences between methods, and the correction for several of them.

A difference between two methods is paired: with the same seed, a client has the same data, initial
weights and batches under both. Two tests use such pairs:

- over clients and seeds: each client of each seed is a pair. The clients of a seed share a server,
  so the pairs are not independent, and p tends to be too small.
- over seeds: each seed is a pair, the mean over its clients. Seeds are independent, but a few of
  them cannot give a small p (`smallest_p`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIGNIFICANT = 0.05
"""The p-value below which a difference counts."""

RESAMPLES = 9999
"""Number of random resamples of a test."""


def paired_test(differences: NDArray[np.float64]) -> float:
    """Return the p-value of the hypothesis that the mean difference is zero (sign-flip test).

    The test is exact if there are at most 13 differences, and otherwise flips signs at random.
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


def smallest_p(pairs: int) -> float:
    """Return the smallest p-value that the sign-flip test of this number of pairs can have.

    Of the 2^n patterns of signs, two are as extreme as n differences of the same sign.
    """
    return min(1.0, max(2.0 ** (1 - pairs), 2 / (RESAMPLES + 1)))


def enough_pairs(tests: int) -> int | None:
    """Return the smallest number of pairs whose p can be significant, corrected for `tests`.

    None if no number is enough: the p of random resamples has a minimum, however many pairs.
    """
    pairs = 1
    while tests * smallest_p(pairs) >= SIGNIFICANT:
        if smallest_p(pairs + 1) == smallest_p(pairs):
            return None
        pairs += 1
    return pairs


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method.

    The smallest of n is multiplied by n, the next by n - 1, and so on. None becomes smaller than
    the one before it, or larger than 1.
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - place) * p_values[index])
        corrected[index] = min(1.0, largest)
    return corrected


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
