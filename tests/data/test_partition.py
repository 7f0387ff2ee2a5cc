import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgh.data.partition import (
    MIN_SAMPLES,
    Indices,
    Partition,
    assemble,
    by_classes,
    by_dirichlet,
    iid,
)
from fedgh.errors import ConfigError

PAPER = [(10, 10, 2), (100, 10, 10), (10, 50, 2), (100, 50, 10), (10, 100, 2), (100, 100, 10)]
"""Settings of the FedGH paper: number of classes, of clients, and of classes per client."""


def labels(num_classes: int, per_class: int, seed: int = 0) -> Indices:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), per_class))


def check_partition(partition: Partition, n: int) -> None:
    """Assert that each sample is used exactly once, and that each client's split is 8:1:1.

    Each split of a client has at least one sample.
    """
    assert sorted(partition.order.tolist()) == list(range(n))
    sizes = partition.bounds.diff(dim=1)
    assert sizes.min() >= 1
    assert partition.bounds[0, 0] == 0
    assert partition.bounds[-1, 3] == n
    assert partition.bounds[1:, 0].equal(partition.bounds[:-1, 3])
    total = sizes.sum(1).double()
    for column in (1, 2):
        assert (sizes[:, column] - total / 10).abs().max() <= 1


@settings(max_examples=60, deadline=None)
@given(
    num_classes=st.integers(1, 12),
    clients=st.integers(1, 20),
    per_client=st.integers(1, 12),
    seed=st.integers(0, 10_000),
)
def test_partition_by_classes_gives_each_client_its_number_of_classes(
    num_classes: int, clients: int, per_client: int, seed: int
) -> None:
    y = labels(num_classes, 100)
    if per_client > num_classes or clients * per_client < num_classes:
        with pytest.raises(ConfigError):
            by_classes(y, num_classes, clients, per_client, seed)
        return
    parts = by_classes(y, num_classes, clients, per_client, seed)
    partition = assemble(parts, y, seed)
    check_partition(partition, len(y))
    counts = np.stack([np.bincount(y[part], minlength=num_classes) for part in parts])
    assert ((counts > 0).sum(1) == per_client).all()
    owners = (counts > 0).sum(0)
    mean_owners = clients * per_client / num_classes
    assert owners.min() >= math.floor(mean_owners)
    assert owners.max() <= math.ceil(mean_owners)
    for label in range(num_classes):
        held = counts[:, label][counts[:, label] > 0]
        # Shares are drawn from U(0.4, 0.6): no client gets more than 1.5 times the share of
        # another, except for rounding to whole samples.
        assert held.max() <= 1.5 * held.min() + 3
    again = assemble(by_classes(y, num_classes, clients, per_client, seed), y, seed)
    assert again.order.equal(partition.order)
    assert again.bounds.equal(partition.bounds)


@pytest.mark.parametrize(("num_classes", "clients", "per_client"), PAPER)
def test_partition_by_classes_with_the_settings_of_the_paper(
    num_classes: int, clients: int, per_client: int
) -> None:
    y = labels(num_classes, 60_000 // num_classes)
    parts = by_classes(y, num_classes, clients, per_client, seed=0)
    check_partition(assemble(parts, y, 0), 60_000)
    counts = np.stack([np.bincount(y[part], minlength=num_classes) for part in parts])
    assert ((counts > 0).sum(0) == per_client * clients // num_classes).all()


def test_shares_of_two_clients_that_have_the_same_class() -> None:
    """A client's share of the class is u / (u + v), with u and v drawn from U(0.4, 0.6)."""
    y = labels(10, 1000)
    shares: list[float] = []
    for seed in range(100):
        parts = by_classes(y, 10, 10, 2, seed)
        counts = np.stack([np.bincount(y[part], minlength=10) for part in parts]) / 1000
        shares.extend(counts[counts > 0])
    drawn = np.random.default_rng(0).uniform(0.4, 0.6, (2, 200_000))
    expected = drawn[0] / drawn.sum(0)
    assert min(shares) >= 0.399
    assert max(shares) <= 0.601
    assert np.mean(shares) == pytest.approx(0.5, abs=0.005)
    assert np.std(shares) == pytest.approx(expected.std(), rel=0.05)


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 30), alpha=st.sampled_from([0.1, 1.0, 100.0]), seed=st.integers(0, 99)
)
def test_dirichlet_partition_uses_every_sample_once(clients: int, alpha: float, seed: int) -> None:
    y = labels(5, 200)
    try:
        parts = by_dirichlet(y, 5, clients, alpha, seed)
    except ConfigError:  # a client got too few samples, which only a small alpha can cause
        assert alpha < 1
        return
    partition = assemble(parts, y, seed)
    check_partition(partition, len(y))
    assert min(map(len, parts)) >= MIN_SAMPLES
    assert assemble(by_dirichlet(y, 5, clients, alpha, seed), y, seed).order.equal(partition.order)


def test_variance_of_dirichlet_shares_depends_on_alpha_as_expected() -> None:
    y = labels(10, 1000)

    def spread(alpha: float) -> float:
        parts = by_dirichlet(y, 10, 10, alpha, seed=0)
        return float(np.std([np.bincount(y[part], minlength=10) for part in parts]))

    # A share of Dirichlet(alpha) over n clients has variance (n-1) / (n^2 (n alpha + 1)).
    for alpha in (0.3, 3.0, 300.0):
        expected = 1000 * math.sqrt(9 / (100 * (10 * alpha + 1)))
        assert spread(alpha) == pytest.approx(expected, rel=0.3)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(3, 500), clients=st.integers(1, 50), seed=st.integers(0, 99))
def test_sizes_of_iid_partition_differ_by_at_most_one(n: int, clients: int, seed: int) -> None:
    y = np.zeros(n, np.int64)
    parts = iid(y, clients, seed)
    if n // clients < MIN_SAMPLES:
        with pytest.raises(ConfigError, match=r"lower federation\.clients"):
            assemble(parts, y, seed)
        return
    check_partition(assemble(parts, y, seed), n)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_another_seed_gives_another_partition() -> None:
    y = labels(10, 100)
    first, second = (assemble(by_classes(y, 10, 10, 2, s), y, s) for s in (0, 1))
    assert not first.order.equal(second.order)


def test_each_split_of_a_client_has_the_same_share_of_each_class() -> None:
    y = np.repeat([0, 1, 2], [700, 200, 100])
    partition = assemble([np.arange(1000)], y, seed=3)
    for split in partition.indices(0):
        share = np.bincount(y[split.numpy()], minlength=3) / len(split)
        assert share == pytest.approx([0.7, 0.2, 0.1], abs=0.011)


def test_impossible_partitions_are_rejected_with_a_reason() -> None:
    y = labels(10, 20)
    with pytest.raises(ConfigError, match="there are 10 classes"):
        by_classes(y, 10, 5, 11, 0)
    with pytest.raises(ConfigError, match=r"federation\.clients to at least 5"):
        by_classes(y, 10, 3, 2, 0)
    with pytest.raises(ConfigError, match="20 samples for 100 clients"):
        by_classes(y, 10, 500, 2, 0)
    with pytest.raises(ConfigError, match=r"raise data\.alpha"):
        by_dirichlet(y, 10, 100, 0.01, 0)


@pytest.mark.parametrize("length", range(3, 120))
def test_a_limit_on_samples_leaves_the_test_split_unchanged(length: int) -> None:
    y = labels(3, 100)
    parts = [np.arange(length), np.arange(length, 2 * length)]
    whole = assemble(parts, y, seed=1)
    for samples in range(3, length + 2):
        few = assemble(parts, y, 1, samples)
        for client in range(2):
            train, validation, test = whole.indices(client)
            few_train, few_validation, few_test = few.indices(client)
            assert few_test.equal(test)
            assert set(few_train.tolist()) <= set(train.tolist())
            assert set(few_validation.tolist()) <= set(validation.tolist())
            if len(train) + len(validation) <= samples:
                assert few_train.equal(train)
                assert few_validation.equal(validation)
            else:
                distinct = len(set(few_train.tolist())) + len(set(few_validation.tolist()))
                assert distinct == samples
                assert len(few_validation) == max(1, round(samples / 9))


def test_limited_samples_are_stratified_by_class() -> None:
    y = np.repeat(np.arange(3), (600, 300, 100))
    few = assemble([np.random.default_rng(0).permutation(1000)], y, 0, samples=90)
    train, validation, test = (y[part.numpy()] for part in few.indices(0))
    assert (len(train), len(validation), len(test)) == (80, 10, 100)
    for split, expected in ((train, (48, 24, 8)), (validation, (6, 3, 1)), (test, (60, 30, 10))):
        assert np.abs(np.bincount(split, minlength=3) - expected).max() <= 1
    again = assemble([np.random.default_rng(0).permutation(1000)], y, 0, samples=90)
    assert again.order.equal(few.order)
