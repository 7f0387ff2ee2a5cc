"""Uploads as whole numbers: their sum, and what the server makes of it, against plain means."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.average import WeightedMean
from fedgh.core.class_table import weighted_means
from fedgh.core.moment_totals import MomentTotals
from fedgh.core.moments import Moments
from fedgh.core.sums import ALL_SENDERS, ClassTotals, Scale, Summation, WeightedTensors
from fedgh.core.types import Payload
from fedgh.errors import WireError

SCALE = Scale(fraction_bits=24, max_norm=1000.0, max_samples=100_000)
FIELDS = {
    "weight": wire.Field(torch.float32, (3, 2)),
    "running_var": wire.Field(torch.float32, (4,), at_least=0),
}


def added(summation: Summation, uploads: list[tuple[Payload, int]]) -> torch.Tensor:
    numbers = [summation.encode(payload, samples) for payload, samples in uploads]
    for each in numbers:
        wire.check({"numbers": each}, summation.spec)
        assert float(each.abs().max()) <= summation.largest
    return torch.stack(numbers).sum(0)


def some_tensors(seed: int, size: float = 1.0) -> Payload:
    rng = torch.Generator().manual_seed(seed)
    draws = {n: torch.randn(f.shape, generator=rng) * size for n, f in FIELDS.items()}  # type: ignore[arg-type]
    return draws | {"running_var": draws["running_var"].abs()}


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 100_000)), min_size=1, max_size=6),
    st.sampled_from([1e-3, 1.0, 100.0]),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_a_sum_is_the_weighted_mean_up_to_half_a_step(
    clients: list[tuple[int, int]], size: float, by_samples: bool
) -> None:
    summation, mean = WeightedTensors(FIELDS, SCALE, by_samples), WeightedMean()
    uploads = [(some_tensors(seed, size), samples) for seed, samples in clients]
    for payload, samples in uploads:
        mean.add(payload, samples if by_samples else 1)
    upload = summation.decode(added(summation, uploads), len(uploads))
    expected = mean.value(if_none={})
    assert_close(upload.payload, expected, rtol=2e-7, atol=2**-25)
    weight = sum(samples for _, samples in uploads)
    assert (upload.client_id, upload.num_examples) == (ALL_SENDERS, weight if by_samples else 0)
    again = WeightedMean()
    again.add(upload.payload, upload.num_examples or 1)
    assert_close(again.value(if_none={}), upload.payload, rtol=0, atol=0)


def test_the_order_of_clients_does_not_change_a_bit() -> None:
    summation = WeightedTensors(FIELDS, SCALE, True)
    uploads = [(some_tensors(seed), 10**seed) for seed in range(6)]
    assert added(summation, uploads).equal(added(summation, uploads[::-1]))


def table(seed: int, *counts: int) -> Payload:
    held = torch.tensor([label for label, count in enumerate(counts) if count], dtype=torch.int32)
    rng = torch.Generator().manual_seed(seed)
    return {
        "classes": held,
        "means": torch.randn(len(held), 5, generator=rng),
        "counts": torch.tensor([count for count in counts if count], dtype=torch.int32),
    }


def test_class_means_add_up_as_the_server_would_add_them() -> None:
    summation = ClassTotals(4, 5, SCALE)
    uploads = [table(1, 3, 0, 7, 0), table(2, 0, 0, 100, 0), table(3, 9000, 0, 1, 0)]
    payload = summation.decode(added(summation, [(each, 1) for each in uploads]), 3).payload
    expected = weighted_means(uploads, 4)
    assert payload["classes"].tolist() == [0, 2]
    assert payload["counts"].tolist() == [9003, 108]
    assert_close(payload["means"], expected["means"], rtol=2e-7, atol=2**-25)
    assert_close(weighted_means([payload], 4)["means"], payload["means"], rtol=0, atol=0)


def test_moments_add_up_exactly_and_absent_ones_add_nothing() -> None:
    summation = MomentTotals(3, 8, SCALE)
    rng = torch.Generator().manual_seed(0)
    own = [
        Moments.of(torch.randn(50, 8, generator=rng), torch.arange(50) % (k + 1), 3)
        for k in range(3)
    ]
    uploads = [moments.payload() for moments in (*own, Moments.zero(3, 8))]
    decoded = summation.decode(added(summation, [(each, 50) for each in uploads]), 4).payload
    total, expected = Moments.read(decoded, 3), own[0] + own[1] + own[2]
    assert all(getattr(total, name).equal(getattr(expected, name)) for name in vars(total))
    nothing = summation.decode(added(summation, [(uploads[3], 50)] * 3), 3).payload
    assert len(nothing["classes"]) == 0


@pytest.mark.parametrize(
    ("change", "samples", "why"),
    [
        ({"weight": torch.full((3, 2), 800.0)}, 5, "'weight' has a row with a norm above"),
        ({"weight": torch.full((3, 2), torch.nan)}, 5, "'weight' has a row with a norm above"),
        ({"weight": torch.full((3, 2), -torch.inf)}, 5, "'weight' has a row with a norm above"),
        ({}, 0, "secure aggregation can represent 1 to 100000 samples of a client"),
        ({}, 100_001, "1 to 100000 samples of a client"),
    ],
)
def test_an_upload_out_of_range_is_refused_by_its_client(
    change: Payload, samples: int, why: str
) -> None:
    with pytest.raises(WireError, match=why):
        WeightedTensors(FIELDS, SCALE, True).encode(some_tensors(0) | change, samples)


def test_moments_and_classes_of_too_many_samples_are_refused_by_their_client() -> None:
    scale = replace(SCALE, max_samples=9)
    moments = Moments.of(torch.randn(10, 8), torch.arange(10) % 2, 3).payload()
    with pytest.raises(WireError, match="1 to 9 samples of a client"):
        MomentTotals(3, 8, scale).encode(moments, 10)
    with pytest.raises(WireError, match="1 to 9 samples of a client"):
        ClassTotals(2, 5, scale).encode(table(0, 3, 10), 13)


def test_impossible_sums_are_refused() -> None:
    """A malicious client can send any numbers; masks hide them, but not their sum."""
    tensors, classes = WeightedTensors(FIELDS, SCALE, True), ClassTotals(4, 5, SCALE)
    honest = added(tensors, [(some_tensors(seed), 10) for seed in range(3)])
    tensors.decode(honest, 3)
    for position, number, why in (
        (0, 2, "has the weight 2"),
        (0, -5, "has the weight -5"),
        (0, 300_001, "has the weight 300001"),
        (1, 2**62, "the mean of 'weight' has a row of norm"),
        (-1, -(2**62), "the mean of 'running_var' has a row of norm"),
    ):
        false = honest.clone()
        false[position] = number
        with pytest.raises(WireError, match=why):
            tensors.decode(false, 3)
    means = added(classes, [(table(seed, 3, 0, 7, 0), 1) for seed in range(3)])
    for position, number, why in (
        (0, -1, "impossible number of samples"),
        (0, 300_001, "impossible number of samples"),
        (1, 0, ""),
        (0, 0, "means of a class without samples"),
        (4, 2**62, "the mean of 'means' has a row of norm"),
    ):
        false = means.clone()
        false[position] = number
        if not why:
            classes.decode(false, 3)
            continue
        with pytest.raises(WireError, match=why):
            classes.decode(false, 3)
    moments = MomentTotals(3, 8, replace(SCALE, max_samples=10))
    for counts in ([-1], [31], [16, 15], [2**63 - 1, 2**63 - 1, 2]):
        false = torch.zeros(moments.length, dtype=torch.int64)
        false[: len(counts)] = torch.tensor(counts)
        with pytest.raises(WireError, match="impossible number of samples"):
            moments.decode(false, 3)


def test_a_variance_that_rounding_makes_negative_stays_in_its_range() -> None:
    summation = WeightedTensors(FIELDS, SCALE, False)
    total = added(summation, [(some_tensors(0), 1)])
    total[-1] = -1
    assert summation.decode(total, 1).payload["running_var"][-1] == 0
