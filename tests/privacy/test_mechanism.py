"""The mechanism: sensitivity by brute force, noise by statistics, and the source of the noise."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close

from fedgh.core.class_table import nearest_distributions
from fedgh.core.local import class_means, class_statistics
from fedgh.core.types import Client
from fedgh.privacy.mechanism import Privacy, system_normal
from tests.support.tiny import a_client

S = 2.0
PUBLIC = Privacy("sample", "public", clip=S, noise_multiplier=1.5)
SECRET = replace(PUBLIC, counts="secret")
CLIENT = replace(PUBLIC, protects="client")

# Vectors at maximum distance, short vectors, and one with NaN.
EXTREMES = [(1e9, 0.0), (-1e9, 0.0), (0.0, S), (0.0, 0.0), (0.3, -0.4), (math.nan, 1.0)]


def client_of(vectors: list[tuple[float, ...]], labels: list[int], privacy: Privacy) -> Client:
    """Return a client whose fixed extractor is the identity."""
    x, y = torch.tensor(vectors), torch.tensor(labels)
    client = a_client(x, y, nn.Identity(), rep_dim=x.shape[1], num_classes=2)
    client.privacy = privacy
    return client


def query_of(client: Client, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Return the values of this client's release, and the scale of the noise on each."""
    queries: list[tuple[Tensor, Tensor]] = []
    query = Privacy.query

    def spy(self: Privacy, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        queries.append(query(self, sums, counts))
        return queries[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Privacy, "query", spy)
        class_statistics(client)
    ((values, scale),) = queries
    return values, scale.expand_as(values)


def sensitivity(
    one: tuple[list[tuple[float, ...]], list[int]],
    other: tuple[list[tuple[float, ...]], list[int]],
    privacy: Privacy,
    monkeypatch: pytest.MonkeyPatch,
) -> float:
    """Return the distance of two data sets' releases, in units of the claimed sensitivity."""
    (a, scale), (b, other_scale) = (
        query_of(client_of(*data, privacy), monkeypatch) for data in (one, other)
    )
    assert_close(scale, other_scale, msg="the scale of the noise must be equal for neighbours")
    return float(((a - b) / scale).norm()) * privacy.noise_multiplier


BASE: list[tuple[float, ...]] = [(S, 0.0), (-1e9, 0.0), (0.1, 0.2), (0.0, -S), (-S, 0.0)]
LABELS = [0, 0, 0, 1, 1]


def replacements() -> list[list[tuple[float, ...]]]:
    """Return the data sets with one sample replaced by an extreme."""
    return [
        [*BASE[:position], vector, *BASE[position + 1 :]]
        for position in range(len(BASE))
        for vector in EXTREMES
    ]


@pytest.mark.parametrize("privacy", [PUBLIC, SECRET])
def test_replacing_a_sample_reaches_exactly_the_claimed_sensitivity(
    privacy: Privacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        sensitivity((BASE, LABELS), (other, LABELS), privacy, monkeypatch)
        for other in replacements()
    ]
    assert max(found) <= 1 + 1e-9
    assert max(found) == pytest.approx(1), "some pair reaches the bound, so no noise is wasted"


def test_adding_or_removing_a_sample_reaches_the_claimed_sensitivity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [([*BASE, vector], [*LABELS, label]) for vector in EXTREMES for label in (0, 1)]
    others += [
        ([*BASE[:k], *BASE[k + 1 :]], [*LABELS[:k], *LABELS[k + 1 :]]) for k in range(len(BASE))
    ]
    found = [sensitivity((BASE, LABELS), other, SECRET, monkeypatch) for other in others]
    assert max(found) <= 1 + 1e-9
    assert max(found) == pytest.approx(1)


def test_replacing_all_data_reaches_exactly_the_claimed_sensitivity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any number of samples with any values, as any trained extractor could give."""
    labels = [0, 0, 1]
    found = [
        sensitivity((list(one), labels), (list(other), [*labels, 1]), CLIENT, monkeypatch)
        for one, other in product(
            product(EXTREMES[:3], repeat=3), [[e] * 4 for e in EXTREMES] + [BASE[:4]]
        )
    ]
    assert max(found) <= 1 + 1e-9
    assert max(found) == pytest.approx(1)


def test_clipping_keeps_directions_and_zeroes_rows_that_are_not_finite() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [math.inf, 1.0], [math.nan, 0.0]])
    expected = torch.tensor([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert_close(PUBLIC.clipped(rows), expected)


WIDTH, HELD = 400, (30, 70)


def released(privacy: Privacy, round: int) -> dict[str, Tensor]:
    """Return a release of zeros: 400 numbers of each of two classes with 30 and 70 samples."""
    labels = [0] * HELD[0] + [1] * HELD[1]
    client = client_of([(0.0,) * WIDTH] * 100, labels, privacy)
    client.round = round
    return class_statistics(client)


def assert_scale(draws: Tensor, claimed: float) -> None:
    """Check mean, variance and shape of a normal sample; each fails by chance once in a million."""
    n, x = draws.numel(), draws.double().flatten().numpy() / claimed
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], n)
    assert low < float((x**2).sum()) < high
    assert abs(x.mean()) < 5 / math.sqrt(n)
    assert stats.kstest(x, "norm").pvalue > 1e-6


@pytest.mark.parametrize("unpredictable", [False, True])
@pytest.mark.parametrize(
    ("privacy", "claimed"),
    [
        (replace(PUBLIC, noise_multiplier=0.05), [0.05 * 2 * S / 30, 0.05 * 2 * S / 70]),
        (replace(CLIENT, noise_multiplier=0.01), [0.01 * 2 * S * math.sqrt(2)] * 2),
    ],
)
def test_the_noise_has_the_claimed_scale(
    privacy: Privacy, claimed: list[float], unpredictable: bool
) -> None:
    """The noise is small, so that the projection onto the ball does not change it."""
    privacy = replace(privacy, unpredictable=unpredictable)
    means = torch.stack([released(privacy, round)["means"] for round in range(15)])
    for label, scale in enumerate(claimed):
        assert_scale(means[:, label], scale)


def test_the_noise_on_sums_and_counts_has_the_claimed_scale() -> None:
    z = 1.5
    sums, counts = torch.zeros(2, WIDTH, dtype=torch.float64), torch.tensor([10**6, 2 * 10**6])
    rng = torch.Generator().manual_seed(0)
    wide = replace(SECRET, clip=1e9)
    found = [wide.release(sums, counts, wide.normal(rng)) for _ in range(500)]
    held = torch.stack([count for _, count in found]).double() - counts
    assert_scale(held + torch.rand(held.shape, generator=rng) - 0.5, z * 2 / math.sqrt(3))
    means = torch.stack([mean[0] for mean, _ in found[:20]])
    assert_scale(means * counts[0], z * 2 * 1e9)


def test_sent_counts_are_exact_constant_or_noisy_as_configured() -> None:
    assert released(PUBLIC, 1)["counts"].tolist() == [30, 70]
    assert released(CLIENT, 1)["counts"].tolist() == [1, 1]
    loud = replace(SECRET, noise_multiplier=100.0)
    counts = torch.stack([released(loud, round)["counts"] for round in range(30)])
    assert counts.dtype == torch.int32
    assert int(counts.min()) == 1
    assert len(counts.unique()) > 20


def test_noisy_means_are_projected_onto_the_ball() -> None:
    loud = replace(CLIENT, noise_multiplier=100.0)
    assert_close(released(loud, 1)["means"].norm(dim=1), torch.full((2,), S))


def test_simulated_noise_repeats_with_the_round_and_real_noise_never() -> None:
    first, second = released(PUBLIC, 1)["means"], released(PUBLIC, 2)["means"]
    assert first.equal(released(PUBLIC, 1)["means"])
    assert not first.equal(second)
    real = replace(PUBLIC, unpredictable=True)
    assert not released(real, 1)["means"].equal(released(real, 1)["means"])


def test_system_noise_is_normal_with_tails_beyond_any_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_scale(system_normal(torch.Size([20, 500])), 1.0)
    for extreme in (b"\0", b"\xff"):
        monkeypatch.setattr("os.urandom", lambda n, byte=extreme: byte * n)
        assert np.isfinite(float(system_normal(torch.Size([1]))))
    monkeypatch.setattr("os.urandom", bytes)
    end = abs(float(system_normal(torch.Size([1]))))
    assert 2 * stats.norm.sf(end) < 1e-38, (
        "the probability beyond the tails is negligible against any δ"
    )


def test_a_second_release_in_a_round_raises() -> None:
    client = client_of(BASE, LABELS, PUBLIC)
    class_means(client)
    with pytest.raises(RuntimeError, match="one release"):
        class_means(client)
    client.round = 1
    class_means(client)


def test_a_known_maximum_norm_reduces_the_noise() -> None:
    """For example, softmax outputs are never longer than 1."""
    client, reference = (
        client_of(BASE, LABELS, PUBLIC),
        client_of(BASE, LABELS, replace(PUBLIC, clip=1.0)),
    )
    assert_close(class_means(client, max_norm=1.0), class_means(reference), atol=0, rtol=0)


def test_without_privacy_means_and_counts_are_exact() -> None:
    client = client_of(BASE[:1] + BASE[2:], LABELS[1:], PUBLIC)
    client.privacy = None
    found = class_statistics(client)
    assert_close(found["means"], torch.tensor([[1.05, 0.1], [-1.0, -1.0]]))
    assert found["counts"].tolist() == [2, 2]


def test_nearest_distributions_are_nearest_by_brute_force() -> None:
    """No point of the simplex is nearer, and a distribution stays unchanged."""
    rng = torch.Generator().manual_seed(0)
    rows = 3 * torch.randn(20, 3, generator=rng)
    found = nearest_distributions(rows)
    assert_close(found.sum(dim=1), torch.ones(20))
    assert bool((found >= 0).all())
    steps = torch.arange(101) / 100
    grid = torch.cartesian_prod(steps, steps)
    grid = torch.cat([grid, 1 - grid.sum(dim=1, keepdim=True)], dim=1)
    nearest = torch.cdist(rows, grid[grid[:, 2] >= 0]).min(dim=1).values
    assert bool(((rows - found).norm(dim=1) <= nearest + 1e-5).all())
    assert_close(nearest_distributions(found), found)
