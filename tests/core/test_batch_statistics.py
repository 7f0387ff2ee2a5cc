"""Static batch normalisation: statistics of the training samples, measured after training."""

import torch
from torch import nn
from torch.testing import assert_close

from fedgh.core.average import network_weights
from fedgh.core.local import measure_batch_statistics
from fedgh.core.types import Client
from tests.support.tiny import a_client


def a_normed_client(**local: int) -> Client:
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 4))
    x = torch.cat([torch.randn(6, 2), torch.randn(6, 2) + 9])  # sorted by class
    return a_client(x, torch.arange(12) // 6, extractor, **local)


def test_statistics_are_means_over_shuffled_batches() -> None:
    client = a_normed_client(batch_size=4)
    norm = next(client.model.extractor.children())
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    norm.running_mean.fill_(77)
    before = network_weights(client.model)
    measure_batch_statistics(client)
    x, order = client.data.train.x, torch.randperm(12, generator=client.stream("batch-statistics"))
    batches = [x[rows] for rows in order.split(4)]
    assert_close(norm.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0))
    assert norm.running_var is not None
    assert_close(norm.running_var, torch.stack([b.var(0) for b in batches]).mean(0))
    assert (
        norm.running_var.min() > 10
    )  # in stored order it would be about 1 in two batches of three
    assert norm.momentum == 0.1
    assert not norm.training
    assert all(before[name].equal(value) for name, value in network_weights(client.model).items())


def test_norms_that_take_the_mean_over_all_batches_are_measured_too() -> None:
    torch.manual_seed(0)
    norm, without = nn.BatchNorm1d(2, momentum=None), nn.BatchNorm1d(2, track_running_stats=False)
    x = torch.randn(12, 2) + 9
    client = a_client(x, torch.arange(12) // 6, nn.Sequential(norm, without, nn.Linear(2, 4)))
    measure_batch_statistics(client)
    assert norm.running_mean is not None
    assert_close(norm.running_mean, x.mean(0))  # of the only batch
    assert norm.momentum is None
    assert without.running_mean is None
    assert without.momentum == 0.1


def test_a_network_without_norms_is_left_alone() -> None:
    client = a_client(torch.randn(4, 2), torch.arange(4) % 3)
    before = client.state()
    measure_batch_statistics(client)
    assert all(before[name].equal(value) for name, value in client.state().items())
