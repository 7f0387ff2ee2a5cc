"""The mechanism: sensitivity by brute force, noise by statistics, and what it is made of."""

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

# Vectors that are as far apart as any two can be, short ones, and one that is no vector.
EXTREMES = [(1e9, 0.0), (-1e9, 0.0), (0.0, S), (0.0, 0.0), (0.3, -0.4), (math.nan, 1.0)]


def client_of(vectors: list[tuple[float, ...]], labels: list[int], privacy: Privacy) -> Client:
    """A client whose fixed extractor passes its inputs on."""
    x, y = torch.tensor(vectors), torch.tensor(labels)
    client = a_client(x, y, nn.Identity(), rep_dim=x.shape[1], num_classes=2)
    client.privacy = privacy
    return client


def asked(client: Client, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """What this client's release is made of: values, and the scale of the noise on them."""
    seen: list[tuple[Tensor, Tensor]] = []
    query = Privacy.query

    def spy(self: Privacy, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(query(self, sums, counts))
        return seen[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Privacy, "query", spy)
        class_statistics(client)
    ((values, scale),) = seen
    return values, scale.expand_as(values)


def costs(
    one: tuple[list[tuple[float, ...]], list[int]],
    other: tuple[list[tuple[float, ...]], list[int]],
    privacy: Privacy,
    monkeypatch: pytest.MonkeyPatch,
) -> float:
    """How far apart two data sets are in units of the noise; times z: of the sensitivity."""
    (a, scale), (b, other_scale) = (
        asked(client_of(*data, privacy), monkeypatch) for data in (one, other)
    )
    assert_close(scale, other_scale, msg="the noise itself must not tell neighbours apart")
    return float(((a - b) / scale).norm()) * privacy.noise_multiplier


BASE: list[tuple[float, ...]] = [(S, 0.0), (-1e9, 0.0), (0.1, 0.2), (0.0, -S), (-S, 0.0)]
LABELS = [0, 0, 0, 1, 1]


def replacements() -> list[list[tuple[float, ...]]]:
    """Every sample replaced by each extreme."""
    return [
        [*BASE[:place], vector, *BASE[place + 1 :]]
        for place in range(len(BASE))
        for vector in EXTREMES
    ]


@pytest.mark.parametrize("privacy", [PUBLIC, SECRET])
def test_replacing_a_sample_costs_what_is_claimed(
    privacy: Privacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        costs((BASE, LABELS), (other, LABELS), privacy, monkeypatch) for other in replacements()
    ]
    assert max(found) <= 1 + 1e-9
    assert max(found) == pytest.approx(1), "no noise is wasted: some pair is as far apart"


def test_adding_or_removing_a_sample_costs_what_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [([*BASE, vector], [*LABELS, label]) for vector in EXTREMES for label in (0, 1)]
    others += [
        ([*BASE[:k], *BASE[k + 1 :]], [*LABELS[:k], *LABELS[k + 1 :]]) for k in range(len(BASE))
    ]
    found = [costs((BASE, LABELS), other, SECRET, monkeypatch) for other in others]
    assert max(found) <= 1 + 1e-9
    assert max(found) == pytest.approx(1)


def test_a_whole_other_client_costs_what_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of samples, any values: as after any training."""
    labels = [0, 0, 1]
    found = [
        costs((list(one), labels), (list(other), [*labels, 1]), CLIENT, monkeypatch)
        for one, other in product(
            product(EXTREMES[:3], repeat=3), [[e] * 4 for e in EXTREMES] + [BASE[:4]]
        )
    ]
    assert max(found) <= 1 + 1e-9
    assert max(found) == pytest.approx(1)


def test_lengths_are_cut_and_directions_kept() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [math.inf, 1.0], [math.nan, 0.0]])
    wanted = torch.tensor([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert_close(PUBLIC.clipped(rows), wanted)


WIDTH, HELD = 400, (30, 70)


def released(privacy: Privacy, round: int) -> dict[str, Tensor]:
    """Zeros and noise: 400 numbers of each of two classes with 30 and 70 samples."""
    labels = [0] * HELD[0] + [1] * HELD[1]
    client = client_of([(0.0,) * WIDTH] * 100, labels, privacy)
    client.round = round
    return class_statistics(client)


def assert_scale(draws: Tensor, claimed: float) -> None:
    """Mean and variance of a normal sample, and its shape; each would fail once in a million."""
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
    """Little noise, so that none of it is cut off by the ball that means are moved into."""
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


def test_counts_that_are_sent_are_noisy_or_say_nothing() -> None:
    assert released(PUBLIC, 1)["counts"].tolist() == [30, 70]
    assert released(CLIENT, 1)["counts"].tolist() == [1, 1]
    loud = replace(SECRET, noise_multiplier=100.0)
    counts = torch.stack([released(loud, round)["counts"] for round in range(30)])
    assert counts.dtype == torch.int32
    assert int(counts.min()) == 1
    assert len(counts.unique()) > 20


def test_means_stay_in_the_ball_of_the_true_ones() -> None:
    loud = replace(CLIENT, noise_multiplier=100.0)
    assert_close(released(loud, 1)["means"].norm(dim=1), torch.full((2,), S))


def test_noise_is_new_in_every_round_and_the_same_in_a_repeated_one() -> None:
    first, second = released(PUBLIC, 1)["means"], released(PUBLIC, 2)["means"]
    assert first.equal(released(PUBLIC, 1)["means"])
    assert not first.equal(second)
    real = replace(PUBLIC, unpredictable=True)
    assert not released(real, 1)["means"].equal(released(real, 1)["means"])


def test_the_numbers_of_the_operating_system_are_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_scale(system_normal(torch.Size([20, 500])), 1.0)
    for extreme in (b"\0", b"\xff"):
        monkeypatch.setattr("os.urandom", lambda n, byte=extreme: byte * n)
        assert np.isfinite(float(system_normal(torch.Size([1]))))
    monkeypatch.setattr("os.urandom", bytes)
    end = abs(float(system_normal(torch.Size([1]))))
    assert 2 * stats.norm.sf(end) < 1e-38, "what is never drawn has no weight beside any δ"


def test_a_round_has_one_release() -> None:
    client = client_of(BASE, LABELS, PUBLIC)
    class_means(client)
    with pytest.raises(RuntimeError, match="one release"):
        class_means(client)
    client.round = 1
    class_means(client)


def test_a_bound_that_the_vectors_keep_by_themselves_makes_less_noise() -> None:
    """Outputs of a softmax are never longer than 1."""
    client, same = (
        client_of(BASE, LABELS, PUBLIC),
        client_of(BASE, LABELS, replace(PUBLIC, clip=1.0)),
    )
    assert_close(class_means(client, largest=1.0), class_means(same), atol=0, rtol=0)


def test_without_privacy_means_and_counts_are_exact() -> None:
    client = client_of(BASE[:1] + BASE[2:], LABELS[1:], PUBLIC)
    client.privacy = None
    found = class_statistics(client)
    assert_close(found["means"], torch.tensor([[1.05, 0.1], [-1.0, -1.0]]))
    assert found["counts"].tolist() == [2, 2]


def test_the_nearest_distribution() -> None:
    """Nothing in the simplex is nearer, by brute force; a distribution is its own nearest."""
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
