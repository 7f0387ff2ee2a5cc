"""Noise on moments: sensitivity by brute force, noise scales by statistics, rejected uploads."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from fedgh.core import private_moments
from fedgh.core.moments import STEPS, Moments
from fedgh.errors import WireError
from fedgh.privacy.mechanism import Privacy

Samples = list[tuple[tuple[float, ...], int]]

Z = 1.5
PUBLIC = Privacy("sample", "public", clip=1.0, noise_multiplier=Z)
SECRET = replace(PUBLIC, counts="secret")
CLIENT = replace(PUBLIC, protects="client")

EXTREMES: list[tuple[float, ...]] = [
    (1.0, 0.0),
    (-1.0, 0.0),
    (0.0, 1.0),
    (0.0, 0.0),
    (1.0, 1.0),
    (1.0, -1.0),
]
BASE: Samples = [((1.0, 0.0), 0), ((-1.0, 0.0), 0), ((0.6, 0.8), 0), ((0.0, -1.0), 1)]


def by_class(samples: Samples) -> dict[int, Moments]:
    labels = sorted({label for _, label in samples})
    return {
        label: Moments.of(
            torch.tensor([x for x, y in samples if y == label]), *_labels(label, samples)
        )
        for label in labels
    }


def _labels(label: int, samples: Samples) -> tuple[Tensor, int]:
    return torch.tensor([y for _, y in samples if y == label]), 2


def released(samples: Samples, privacy: Privacy) -> Tensor:
    """Return the whole release without noise, in units of the noise."""
    counts, sums, second = private_moments.query(by_class(samples), privacy)
    on_sums, on_second, on_counts = private_moments.noise_scales(privacy, len(counts))
    rows, columns = torch.triu_indices(2, 2)
    on_triangle = torch.where(rows == columns, on_second, on_second * math.sqrt(0.5))
    parts = [(sums / on_sums).flatten(), second / on_triangle]
    if on_counts:
        parts.append(counts / on_counts)
    else:
        assert privacy.protects == "client" or privacy.counts == "public"
    return torch.cat(parts)


def distance(one: Samples, other: Samples, privacy: Privacy) -> float:
    """Return the distance of two data sets' releases, in units of the sensitivity."""
    return float((released(one, privacy) - released(other, privacy)).norm()) * Z


@pytest.mark.parametrize("privacy", [PUBLIC, SECRET])
def test_a_replaced_sample_moves_a_release_by_at_most_one(privacy: Privacy) -> None:
    moves = [
        distance(BASE, [*BASE[:place], (x, BASE[place][1]), *BASE[place + 1 :]], privacy)
        for place, x in product(range(len(BASE)), EXTREMES)
    ]
    assert max(moves) <= 1
    # Less than 1: opposite vectors have the same outer product, so both bounds are never reached.
    assert max(moves) > 0.7


def test_an_added_sample_moves_a_release_with_secret_counts_by_at_most_one() -> None:
    moves = [distance(BASE, [*BASE, (x, label)], SECRET) for x in EXTREMES for label in (0, 1)]
    assert max(moves) <= 1
    assert max(moves) > 0.99


def test_any_other_data_moves_a_release_that_protects_clients_by_at_most_one() -> None:
    spread = [(x, label) for x in EXTREMES for label in (0, 1)]
    data: list[Samples] = [
        BASE,
        spread,
        *([(x, 0), (y, 1)] for x, y in product(EXTREMES, EXTREMES)),
        *([(x, 0)] * 7 + [(y, 1)] for x, y in product(EXTREMES, EXTREMES)),
    ]
    moves = [distance(one, other, CLIENT) for one, other in product(data, data)]
    assert max(moves) <= 1 + 1e-9
    assert max(moves) > 0.7


@pytest.mark.parametrize("privacy", [PUBLIC, SECRET, CLIENT])
def test_noise_has_the_derived_standard_deviations(privacy: Privacy) -> None:
    own = by_class(BASE)
    counts, sums, second = private_moments.query(own, privacy)
    rng = torch.Generator().manual_seed(0)

    def normal(shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    releases = [private_moments.release(own, 2, privacy, normal) for _ in range(4000)]
    on_sums, on_second, on_counts = private_moments.noise_scales(privacy, 2)
    noise = torch.stack([m.sums for m in releases]) / STEPS - sums
    assert float(noise.std()) == pytest.approx(on_sums, rel=0.03)
    assert abs(float(noise.mean())) < 0.05 * on_sums
    triangle = torch.stack([m.second for m in releases]) / STEPS**2 - second
    assert triangle.std(0).tolist() == pytest.approx(
        [on_second, on_second * math.sqrt(0.5), on_second], rel=0.05
    )
    noisy_counts = torch.stack([m.counts for m in releases])
    if on_counts:
        assert noisy_counts.min() == 1
        assert len(noisy_counts.unique()) > 3
    else:
        assert noisy_counts.unique(dim=0).tolist() == [counts.tolist()]


@pytest.mark.parametrize("privacy", [PUBLIC, SECRET, CLIENT])
def test_check_accepts_noisy_moments_and_rejects_larger_ones(privacy: Privacy) -> None:
    rng = torch.Generator().manual_seed(0)

    def normal(shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    for _ in range(200):
        sent = private_moments.release(by_class(BASE), 2, privacy, normal)
        private_moments.check(sent, privacy)
    with pytest.raises(WireError, match="'sums' are longer"):
        private_moments.check(replace(sent, sums=sent.sums * 0 + 100 * STEPS), privacy)
    with pytest.raises(WireError, match="'second' is larger"):
        private_moments.check(replace(sent, second=sent.second * 0 + 200 * STEPS**2), privacy)


def test_noise_level_is_about_the_largest_eigenvalue_of_the_noise() -> None:
    width, clients = 60, 4
    terms = private_moments.noise_terms(PUBLIC)
    level = private_moments.noise_level(terms, torch.tensor([2] * clients), width)
    _, scale, _ = private_moments.noise_scales(PUBLIC, 2)
    rng = torch.Generator().manual_seed(0)
    total = torch.zeros(width, width)
    for _ in range(clients):
        upper = torch.randn(width, width, generator=rng).triu(1) * scale * math.sqrt(0.5)
        total += upper + upper.T + torch.diag(torch.randn(width, generator=rng) * scale)
    assert float(torch.linalg.eigvalsh(total).max()) == pytest.approx(level, rel=0.15)
    assert private_moments.noise_terms(None).tolist() == [0, 0]
    by_client = private_moments.noise_terms(CLIENT)
    assert private_moments.noise_level(by_client, torch.tensor([3]), 2) == pytest.approx(
        2 * private_moments.noise_scales(CLIENT, 3)[1]
    )
