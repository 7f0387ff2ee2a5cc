"""Confidence intervals, worked by hand and checked on simulated federations."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgh.studies.statistics import Interval, mean_interval


def interval(*pairs: list[float]) -> Interval:
    return mean_interval([np.array(differences) for differences in pairs])


def near(mean: float, half_width: float) -> Interval:
    return Interval(
        *(pytest.approx(end, abs=5e-4) for end in (mean, mean - half_width, mean + half_width))  # type: ignore[arg-type]
    )


def test_intervals_worked_by_hand() -> None:
    # Means 0.2 and 0.3: standard error 0.05, and 12.706 of Student's with one degree of freedom.
    # Within seeds the variance is 0.02, the error of the mean √0.005: less, with 4.303 of them.
    assert interval([0.1, 0.3], [0.2, 0.4]) == near(0.25, 0.05 * 12.706)
    # Seeds that agree by chance: only the clients within seeds show the uncertainty.
    assert interval([0.1, 0.3], [0.1, 0.3]) == near(0.2, 0.005**0.5 * 4.303)
    # One seed: standard error 0.1/√3.
    assert interval([0.0, 0.1, 0.2]) == near(0.1, 0.1 / 3**0.5 * 4.303)
    # Each seed has the same weight, for any number of evaluated clients.
    assert interval([0.0], [0.1, 0.3]).mean == pytest.approx(0.1)
    # Seeds with one client each have no variance within seeds.
    assert interval([0.0], [0.1], [0.2]) == near(0.1, 0.1 / 3**0.5 * 4.303)


def test_an_interval_is_limited_to_possible_differences_of_accuracies() -> None:
    assert interval([0.2]) == Interval(0.2, -1.0, 1.0)
    assert interval([0.2], [0.4]).high == 1.0
    assert interval([0.0, 0.0], [0.0, 0.0]) == Interval(0.0, 0.0, 0.0)


def test_an_interval_is_shown_in_points() -> None:
    assert Interval(0.0214, -0.0004, 0.1).points == "+2.1 [+0.0, +10.0]"


def simulated(
    rng: np.random.Generator, seeds: int, clients: int, between: float, within: float, samples: int
) -> list[NDArray[np.float64]]:
    """Return differences around 0.01 that vary between seeds and clients, in whole samples."""
    means = rng.normal(0.01, between, (seeds, 1))
    scores = rng.normal(means, within, (seeds, clients))
    return list(np.round(scores * samples + rng.uniform(-0.5, 0.5, scores.shape)) / samples)


def coverage(seeds: int, clients: int, between: float, within: float, samples: int = 20) -> float:
    rng = np.random.default_rng(0)
    intervals = (
        mean_interval(simulated(rng, seeds, clients, between, within, samples)) for _ in range(1000)
    )
    return float(np.mean([each.low <= 0.01 <= each.high for each in intervals]))


@pytest.mark.parametrize(
    ("seeds", "clients", "between", "within"),
    [
        *((3, 10, 0.0, 0.05), (3, 10, 0.05, 0.05), (3, 10, 0.05, 0.001), (3, 4, 0.01, 0.1)),
        *((2, 10, 0.02, 0.05), (5, 10, 0.0, 0.05), (5, 10, 0.05, 0.05), (5, 100, 0.02, 0.05)),
    ],
)
def test_an_interval_covers_the_true_mean_as_often_as_stated(
    seeds: int, clients: int, between: float, within: float
) -> None:
    assert coverage(seeds, clients, between, within) > 0.93


def test_the_interval_of_one_seed_is_too_narrow_if_seeds_differ() -> None:
    assert coverage(1, 10, between=0.0, within=0.05) > 0.93
    assert coverage(1, 10, between=0.05, within=0.05) < 0.6
