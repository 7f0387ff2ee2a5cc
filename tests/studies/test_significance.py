"""Tests of differences and Holm's correction, by hand, by brute force, and by another test."""

from itertools import combinations, product

import numpy as np
import pytest

from fedgh.studies.significance import (
    SIGNIFICANT,
    enough_pairs,
    holm,
    paired_test,
    smallest_p,
)


def test_holms_correction_worked_by_hand() -> None:
    # Sorted: 0.005 · 4 = 0.02, 0.01 · 3 = 0.03, 0.03 · 2 = 0.06, and 0.04 · 1 = 0.04 is below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.3]) == [0.3]
    assert holm([]) == []


def closed(p_values: list[float]) -> list[float]:
    """Holm's method as closed testing: the largest Bonferroni p of all sets with a hypothesis."""
    numbers = range(len(p_values))
    sets = [each for size in numbers for each in combinations(numbers, size + 1)]
    bonferroni = {each: min(1.0, len(each) * min(p_values[i] for i in each)) for each in sets}
    return [max(p for each, p in bonferroni.items() if i in each) for i in numbers]


def test_holms_correction_is_that_of_closed_testing() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p_values = list(np.round(rng.uniform(0, 0.4, rng.integers(1, 7)), 2))
        assert holm(p_values) == pytest.approx(closed(p_values))


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 6])
def test_the_smallest_p_is_that_of_equal_signs(seeds: int) -> None:
    differences = np.linspace(0.01, 0.02, seeds)
    flipped = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=seeds)]
    extreme = sum(total >= differences.sum() - 1e-12 for total in flipped) / 2**seeds
    assert smallest_p(seeds) == extreme
    assert paired_test(differences) == pytest.approx(extreme)


def test_five_seeds_are_too_few_for_a_significant_difference() -> None:
    assert (smallest_p(5), smallest_p(6)) == (0.0625, 0.03125)
    assert enough_pairs(1) == 6
    for tests in (2, 7, 32):
        enough = enough_pairs(tests)
        assert enough is not None
        assert tests * smallest_p(enough) < SIGNIFICANT <= tests * smallest_p(enough - 1)


def test_so_many_tests_that_no_number_of_pairs_is_enough() -> None:
    """The smallest p is 0.0002, of which 250 times is 0.05."""
    assert enough_pairs(249) == 14
    assert enough_pairs(250) is None
    assert enough_pairs(10_000) is None


def test_random_resamples_have_a_smallest_p_too() -> None:
    assert paired_test(np.ones(40)) == pytest.approx(smallest_p(40))
