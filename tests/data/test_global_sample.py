"""Test samples of global accuracy, against counts made by hand."""

from collections import Counter

import numpy as np
import pytest
import torch

from fedgh.core.types import Task
from fedgh.data.global_sample import GlobalSample, balanced
from fedgh.data.partition import Partition, assemble, by_dirichlet, iid


def task(classes: int, clients: int, seed: int = 0) -> Task:
    return Task(classes, rep_dim=2, num_clients=clients, rounds=1, seed=seed)


def partitioned(classes: int, per_class: int, clients: int) -> tuple[Partition, torch.Tensor]:
    y = np.repeat(np.arange(classes), per_class)
    return assemble(iid(y, clients, seed=0), y, seed=0), torch.from_numpy(y)


def test_samples_are_assigned_to_clients_cyclically() -> None:
    sample = GlobalSample(torch.tensor([5, 3, 9, 1, 7, 2]), size=4)
    assert [sample.indices(k).tolist() for k in range(4)] == [
        [1, 3, 5, 9],
        [2, 3, 5, 7],
        [1, 2, 7, 9],
        [1, 3, 5, 9],
    ]


@pytest.mark.parametrize(
    ("classes", "per_class", "clients", "size"),
    [
        (10, 6000, 10, 1000),  # the limit of one client
        (10, 6000, 1000, 200),  # the limit of all clients, 200,000
        (7, 6000, 10, 994),  # 142 of each class
        (100, 600, 10_000, 100),  # one of each class at least
        (10, 300, 10, None),  # all samples that exist
    ],
)
def test_the_number_of_samples_per_client_is_bounded(
    classes: int, per_class: int, clients: int, size: int | None
) -> None:
    partition, y = partitioned(classes, per_class, clients)
    test = torch.cat([partition.indices(k)[2] for k in range(clients)])
    assert partition.all_test().equal(test)
    sample = balanced(partition, y, task(classes, clients))
    fewest = int(y[test].bincount().min())
    assert len(sample.order) == classes * fewest
    assert sample.size == (classes * fewest if size is None else size)
    assert set(sample.order.tolist()) <= set(test.tolist())
    for client in (0, 1, clients - 1):
        index = sample.indices(client)
        assert len(set(index.tolist())) == sample.size
        assert set(y[index].bincount(minlength=classes).tolist()) == {sample.size // classes}


def test_all_clients_together_use_the_whole_sample() -> None:
    partition, y = partitioned(10, 6000, 20)
    sample = balanced(partition, y, task(10, 20))
    times = Counter(i for k in range(20) for i in sample.indices(k).tolist())
    assert set(times) == set(sample.order.tolist())
    assert max(times.values()) - min(times.values()) <= 1
    again = balanced(partition, y, task(10, 20))
    assert again.order.equal(sample.order)
    assert not balanced(partition, y, task(10, 20, seed=1)).order.equal(sample.order)


def test_with_more_classes_than_samples_classes_alternate() -> None:
    partition, y = partitioned(1500, 20, 3)
    sample = balanced(partition, y, task(1500, 3))
    assert sample.size == 1000
    for client in range(3):
        assert set(y[sample.indices(client)].bincount().tolist()) <= {0, 1}


def test_a_class_without_test_data_is_left_out() -> None:
    y = np.array([0] * 30 + [1] * 30 + [2] * 2)
    parts = by_dirichlet(y, 3, 2, alpha=1.0, seed=0)
    partition = assemble(parts, y, seed=1)
    labels = torch.from_numpy(y)
    there = set(labels[partition.all_test()].tolist())
    assert there == {0, 1}, "as this seed splits them"
    sample = balanced(partition, labels, task(3, 2))
    counts = labels[sample.indices(0)].bincount(minlength=3).tolist()
    assert counts[0] == counts[1] > 0 == counts[2]
