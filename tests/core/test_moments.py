"""Moments: exact sums of feature vectors, and the headers solved from them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgh.core import wire
from fedgh.core.feature_header import gaussian, ridge
from fedgh.core.moments import STEPS, Moments, from_digits, in_steps, to_digits
from fedgh.core.types import Task
from fedgh.errors import WireError

CLASSES, WIDTH = 4, 8


def samples(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=rng)
    x = torch.randn(n, WIDTH, generator=rng).double() + 2 * torch.eye(CLASSES, WIDTH).double()[y]
    return x, y


def same(a: Moments, b: Moments) -> bool:
    return all(getattr(a, name).equal(getattr(b, name)) for name in ("counts", "sums", "second"))


def header_of(moments: Moments) -> tuple[Tensor, Tensor]:
    held = moments.counts[moments.classes].double()
    return gaussian(moments.means, held, moments.scatter, int(held.sum()), 0.5)


def test_moments_equal_those_computed_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])  # lengths 5, 2 and 0
    found = Moments.of(x, torch.tensor([1, 1, 0]), 3)
    a = (2457.0, 3276.0)  # 0.6 and 0.8 times 4096, rounded down
    assert found.counts.tolist() == [1, 2, 0]
    assert found.sums.tolist() == [[0, 0], [a[0], a[1] + STEPS], [0, 0]]
    assert found.second.tolist() == [a[0] ** 2, a[0] * a[1], a[1] ** 2 + STEPS**2]


def test_rounding_to_steps_never_lengthens_a_vector_beyond_one() -> None:
    x, _ = samples(1000)
    assert (in_steps(x).norm(dim=1) <= STEPS).all()


@settings(max_examples=60, deadline=None)
@given(
    owners=st.lists(st.integers(0, 5), min_size=40, max_size=40),
    order=st.permutations(range(6)),
    absent=st.sets(st.integers(0, 5), max_size=3),
    leaver=st.integers(0, 5),
)
def test_any_partition_order_participation_and_forgetting_equal_pooling(
    owners: list[int], order: list[int], absent: set[int], leaver: int
) -> None:
    x, y = samples(40)
    owner = torch.tensor(owners)
    total = Moments.zero(CLASSES, WIDTH)
    parts = {}
    for client in order:
        own = owner == client
        parts[client] = Moments.of(x[own], y[own], CLASSES)
        if client not in absent:
            total = total + parts[client]
    present = ~torch.isin(owner, torch.tensor(sorted(absent), dtype=torch.int64))
    pooled = Moments.of(x[present], y[present], CLASSES)
    assert same(total, pooled)
    if leaver not in absent:
        rest = present & (owner != leaver)
        total, pooled = total - parts[leaver], Moments.of(x[rest], y[rest], CLASSES)
        assert same(total, pooled)
    if len(pooled.classes) > 1:
        for ours, reference in zip(header_of(total), header_of(pooled), strict=True):
            assert ours.equal(reference)  # bit for bit


def test_the_header_is_linear_discriminant_analysis_of_the_pooled_samples() -> None:
    """The reference is computed by brute force from the samples, which no server has."""
    x, y = samples(200)
    z = in_steps(x) / STEPS
    found = header_of(Moments.of(x, y, CLASSES))
    means = torch.stack([z[y == label].mean(0) for label in range(CLASSES)])
    centred = z - means[y]
    covariance = sum(torch.outer(row, row) for row in centred) / len(z)
    assert isinstance(covariance, Tensor)
    share = 0.5 * WIDTH / len(z)
    shrunk = (covariance + share * torch.diag(covariance.diagonal())) / (1 + share)
    inverse = torch.linalg.inv(shrunk + 1e-4 * covariance.diagonal().mean() * torch.eye(WIDTH))
    weight, bias = means @ inverse, -0.5 * ((means @ inverse) * means).sum(1)
    ours, reference = z @ found[0].T + found[1], z @ weight.T + bias
    # Equal up to a constant per sample, which does not change the softmax.
    torch.testing.assert_close(
        ours - ours.mean(1, keepdim=True),
        reference - reference.mean(1, keepdim=True),
        rtol=1e-6,
        atol=0,
    )


def test_ridge_is_a_regression_on_one_hot_targets() -> None:
    """The reference is a penalised fit with a free intercept, solved by lstsq."""
    x, y = samples(100)
    z = in_steps(x) / STEPS
    weight, bias = ridge(Moments.of(x, y, CLASSES), 0.5)
    targets = torch.eye(CLASSES).double()[y]
    centre = z.mean(0)
    spread = (z - centre).T @ (z - centre) / len(z)
    strength = (0.5 * WIDTH / len(z) + 1e-4) * spread.diagonal().mean()
    penalty = (strength * len(z)).sqrt() * torch.eye(WIDTH).double()
    fit = torch.linalg.lstsq(
        torch.cat([z - centre, penalty]),
        torch.cat([targets - targets.mean(0), torch.zeros(WIDTH, CLASSES).double()]),
    ).solution
    torch.testing.assert_close(weight / 16, fit.T)
    torch.testing.assert_close(bias / 16, targets.mean(0) - centre @ fit)


def test_digits_restore_small_and_large_numbers_exactly() -> None:
    small = torch.tensor([0, 1, -1, 2**31 - 1, 1 - 2**31])
    large = torch.tensor([2**31, -(2**31), 2**52 + 12345, -(2**60), 2**30])
    assert to_digits(small).shape == (1, 5)
    assert to_digits(large).shape == (2, 5)
    for numbers in (small, large):
        assert to_digits(numbers).dtype == torch.int32
        assert from_digits(to_digits(numbers)).equal(numbers)


def test_moments_survive_a_message_unchanged() -> None:
    x, y = samples(50)
    sent = Moments.of(x, y.clamp(max=2), CLASSES)
    task = Task(CLASSES, 1, 1, 1, 0)
    message = wire.to_bytes(sent.payload())
    received = wire.read(message, [Moments.spec(task, WIDTH)], 1000)
    assert same(Moments.read(received, CLASSES), sent)
    assert received["classes"].tolist() == [0, 1, 2]
    empty = Moments.zero(CLASSES, WIDTH).payload()
    assert wire.nbytes(empty) == 0
    wire.check(empty, Moments.spec(task, WIDTH))


def honest() -> Moments:
    return Moments.of(*samples(6), CLASSES)  # fewer samples than dimensions


def test_check_accepts_moments_of_real_samples() -> None:
    honest().check()
    for seed in range(20):
        Moments.of(*samples(1 + 7 * seed, seed), CLASSES).check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: Moments(m.counts, m.sums * 100, m.second), "'sums' are longer"),
        (lambda m: Moments(m.counts, m.sums, m.second * 3), "its diagonal does not fit"),
        (lambda m: Moments(m.counts, m.sums, m.second // 3), "'second' is impossible"),
        (lambda m: Moments(m.counts, m.sums, -m.second), "its diagonal does not fit"),
        (lambda m: Moments(m.counts * 2**24, m.sums, m.second), "more than 16,777,216 samples"),
        (lambda m: Moments(m.counts * 0 + 1, m.sums, m.second), "'sums' are longer|its diagonal"),
        (lambda m: Moments(m.counts, -m.sums.flip(1), m.second), "'second' is impossible"),
    ],
)
def test_check_rejects_impossible_moments(change: object, message: str) -> None:
    impossible = change(honest())  # type: ignore[operator]
    with pytest.raises(WireError, match=message):
        impossible.check()


def test_features_that_are_not_finite_become_zero() -> None:
    x = torch.tensor([[1.0, torch.inf], [torch.nan, 1.0], [3e300, 4e300], [0.0, 2.0]]).double()
    assert in_steps(x)[[0, 1]].eq(0).all()
    assert in_steps(x)[3].tolist() == [0, STEPS]
