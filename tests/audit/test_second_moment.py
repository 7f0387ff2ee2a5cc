"""Attacks on second moments of synthetic vectors, for which the answer is known."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from fedgh.audit.noise import DELTA, NO_NOISE, Level
from fedgh.audit.roc import Scores, auc
from fedgh.audit.second_moment import (
    Attacker,
    EntryStatistics,
    SentMoment,
    Vectors,
    leverage,
    ratio_with_noise,
    ratio_without_noise,
    send_moments,
)
from fedgh.core.moments import unit
from fedgh.core.rng import stream
from fedgh.privacy.accounting import noise_multiplier

WIDTH = 16


def normal(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(0, name), dtype=torch.float64)


def directions(name: str, count: int, width: int = WIDTH) -> Vectors:
    """Vectors of length one, uniform over all directions, of two classes."""
    return Vectors(unit(normal(name, count, width)), torch.arange(count) % 2)


def areas(count: int, times: int = 1) -> tuple[float, float]:
    """AUC by likelihood ratio and by leverage, over several uploads without noise."""
    plain = area(
        count, NO_NOISE, times, lambda sent, vectors: -leverage(sent.second, vectors.rounded)
    )
    return with_noise(count, NO_NOISE, times), plain


def with_noise(count: int, level: Level, times: int) -> float:
    """AUC by likelihood ratio."""
    return area(count, level, times, Attacker(directions("own", 2000)).likelihood_ratio)


def area(
    count: int, level: Level, times: int, score: Callable[[SentMoment, Vectors], Tensor]
) -> float:
    scores = []
    for time in range(times):
        both = [directions(f"{group} {time}", count) for group in ("members", "others")]
        sent = send_moments(both[0], 2, level, stream(0, f"noise {time}"))
        scores.append([score(sent, vectors) for vectors in both])
    joined = (torch.cat(parts) for parts in zip(*scores, strict=True))
    return auc(*(Scores(values, torch.arange(len(values))) for values in joined)).value


@pytest.mark.parametrize("count", [1, WIDTH // 2, WIDTH - 1])
def test_fewer_samples_than_dimensions_are_all_detected(count: int) -> None:
    assert areas(count, times=20) == (1, 1)


def test_the_leverage_is_at_most_one_for_members_and_unbounded_for_others() -> None:
    for count in (5, 40):
        members = directions("members", count)
        sent = send_moments(members, 2, NO_NOISE, stream(0, "none"))
        inside = leverage(sent.second, members.rounded)
        assert bool((inside <= 1 + 1e-6).all())
        assert float(inside.sum()) == pytest.approx(min(count, WIDTH), rel=1e-4)  # the rank
    sent = send_moments(directions("members", 5), 2, NO_NOISE, stream(0, "none"))
    assert float(leverage(sent.second, directions("others", 9).rounded).min()) > 1e4


def test_the_auc_of_the_likelihood_ratio_agrees_with_theory() -> None:
    """M is a sum of n vectors with d (d + 1) / 2 - 1 free numbers: see the test for class means.

    The distribution is the same in all directions, so the leverage alone is as good as the ratio.
    """
    for count, times in ((200, 10), (1000, 4)):
        expected = norm.cdf(math.sqrt((WIDTH * (WIDTH + 1) / 2 - 1) / count / 2))
        assert areas(count, times=times) == pytest.approx((expected, expected), abs=0.03)
    assert areas(20_000)[0] == pytest.approx(0.5, abs=0.04)


def test_the_ratio_in_one_dimension_equals_numerical_integration() -> None:
    """In one dimension M is a sum of squares, and the unknown variance can be integrated out."""
    n, own, second = 6, torch.tensor([[0.7], [-1.1], [0.4]]).double(), 3.5

    def log_ratio(z: float) -> float:
        def of_squares(total: float, count: int, variance: float) -> float:
            power = total ** (count / 2 - 1) * math.exp(-total / 2 / variance)
            return float(power / ((2 * variance) ** (count / 2) * math.gamma(count / 2)))

        def known(
            variance: float,
        ) -> float:  # the prior, times the likelihood of all vectors that the attacker has
            vectors = [*own.flatten().tolist(), z]
            likely = math.prod(norm.pdf(x, 0, math.sqrt(variance)) for x in vectors)
            return float(likely / variance)

        within, beside = (
            quad(lambda v, t=total, c=count: known(v) * of_squares(t, c, v), 0, math.inf)[0]
            for total, count in ((second - z * z, n - 1), (second, n))
        )
        return math.log(within / beside)

    candidates = torch.tensor([[0.1], [0.9], [1.5]]).double()
    sent = SentMoment(torch.tensor([n]), torch.tensor([[second]]).double())
    ratio = ratio_without_noise(sent, own, candidates)
    expected = torch.tensor([log_ratio(z) for z in candidates.flatten().tolist()])
    assert torch.allclose((ratio - ratio[0]).float(), expected - expected[0], atol=1e-4)
    outside = torch.tensor([[math.sqrt(second) + 0.1]]).double()
    assert ratio_without_noise(sent, own, outside) < -1e9


def test_the_ratio_with_noise_equals_a_sum_of_log_densities() -> None:
    own, candidates = normal("own", 50, 3), normal("candidates", 4, 3)
    second = 9 * normal("second", 3, 3)
    sent = SentMoment(torch.tensor([4, 5]), second + second.T, std=2.0)
    ratios = ratio_with_noise(sent, EntryStatistics.of(own), candidates)
    expected, basis = torch.linalg.eigh(own.T @ own / 50)
    along, received = own @ basis, basis.T @ sent.second @ basis
    for z, ratio in zip(candidates @ basis, ratios, strict=True):
        total = 0.0
        for i in range(3):
            for j in range(i, 3):
                mean = float(expected[i]) if i == j else 0.0
                variance = 9 * float((along[:, i] * along[:, j]).square().mean() - mean**2)
                std = math.sqrt(variance + (4.0 if i == j else 2.0))
                moved = 8 * mean + float(z[i] * z[j])
                total += norm.logpdf(float(received[i, j]), moved, std)
                total -= norm.logpdf(float(received[i, j]), 9 * mean, std)
        assert float(ratio) == pytest.approx(total)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_auc_with_noise_is_below_the_bound_of_the_mechanism(epsilon: float) -> None:
    """A Gaussian mechanism with multiplier z allows no test an AUC above Φ(1/(z√2))."""
    bound = norm.cdf(1 / noise_multiplier(epsilon, DELTA, 1) / math.sqrt(2))
    for count in (2, 50):
        level = Level(protects="sample", epsilon=epsilon)
        ratio = with_noise(count, level, times=600 // count)
        assert 0.46 < ratio < bound + 0.03


def test_noise_that_protects_a_client_hides_its_samples() -> None:
    ratio = with_noise(40, Level(protects="client", epsilon=8), times=15)
    assert ratio == pytest.approx(0.5, abs=0.05)


def test_very_little_noise_hides_nothing() -> None:
    assert with_noise(10, Level(protects="sample", epsilon=1e5), times=20) > 0.9
