"""Cronus: the robust mean by hand, joint training, the first round alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, linalg, quantile
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core.local import train
from fedgh.errors import ConfigError
from fedgh.methods.cronus import BLOCK, Cronus, robust_means
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.tiny import quick

START = Cronus().init_server(TASK, [], torch.Generator())


def binary(*first: float) -> Tensor:
    p = torch.tensor(first, dtype=torch.float64)
    return torch.stack([p, 1 - p], dim=1)


def robust_mean(x: Tensor, most: int) -> Tensor:
    """Return the robust mean of the vectors [n, classes] of a single sample."""
    mean: Tensor = robust_means(x[None], most)[0]
    return mean


def one_by_one(x: Tensor, most: int) -> Tensor:
    """Compute it as it is described: a decomposition of the vectors, then one vector less."""
    for _ in range(most):
        along = x @ linalg.svd(x - x.mean(0), full_matrices=False).Vh[0]
        distance = (along - quantile(along, 0.5)).abs()
        if distance.max() <= 3 * (1.4826 * quantile(distance, 0.5)).clamp(min=0.05):
            break
        x = x[torch.arange(len(x)) != distance.argmax()]
    return x.mean(0)


def test_the_robust_mean_by_hand() -> None:
    """The limit is 3 max(.0419, .05) = .15; the liar's distance is 1.2728."""
    said = binary(0.90, 0.88, 0.92, 0.90, 0.00)
    assert robust_mean(said, 1)[0].item() == pytest.approx(0.90)
    assert robust_mean(said, 0)[0].item() == pytest.approx(0.72)
    honest = binary(0.90, 0.88, 0.92, 0.90)
    assert robust_mean(honest, 1).equal(honest.mean(0))


@pytest.mark.parametrize("classes", [3, 30])  # fewer and more than clients
def test_samples_are_filtered_as_if_each_were_alone(classes: int) -> None:
    torch.manual_seed(0)
    said = torch.randn(BLOCK + 5, 20, classes).softmax(2)  # more than one block
    for sample in range(len(said)):
        liars = sample % 6  # of which at most four can be removed
        said[sample, :liars] = torch.randn(liars, classes).mul(9).softmax(1)
    expected = torch.stack([one_by_one(x.double(), 4) for x in said]).float()
    rows = [{"probabilities": of_client} for of_client in said.unbind(1)]
    found = Cronus().server_update(START, sent(rows))["probabilities"]
    assert_close(found, expected, atol=1e-7, rtol=0)
    plain = said.double().mean(1).float()
    removed = (found - plain).abs().amax(1) > 1e-6
    assert 0 < int(removed.sum()) < len(said)


def test_the_only_clients_that_know_a_class_are_removed() -> None:
    """Of ten clients, each with two classes, two know the first class and are sure of it."""
    said = torch.zeros(10, 10, dtype=torch.float64)
    for client in range(10):
        one, other = client, (client + 1) % 10
        said[client, one], said[client, other] = 0.7, 0.3
    said[0, 0], said[0, 1] = 0.99, 0.01
    said[9, 0], said[9, 9] = 0.99, 0.01
    assert said.mean(0)[0].item() == pytest.approx(0.198)
    assert robust_mean(said, 1)[0].item() == pytest.approx(0.11)
    assert robust_mean(said, 2)[0].item() == pytest.approx(0)


def test_the_server_drops_at_most_the_given_share() -> None:
    rows = [{"probabilities": binary(p).float()} for p in (0.90, 0.88, 0.92, 0.90, 0.00)]
    robust = Cronus().server_update(START, sent(rows))["probabilities"]
    assert_close(robust, binary(0.90).float())
    plain = Cronus(epsilon=0.0).server_update(START, sent(rows))["probabilities"]
    assert plain.equal(torch.stack([r["probabilities"].double() for r in rows]).mean(0).float())
    assert Cronus().server_update(START, sent([])) is START


def test_more_classes_than_clients() -> None:
    torch.manual_seed(0)
    said = torch.randn(5, 40, dtype=torch.float64).mul(0.01).softmax(1)
    liar = torch.zeros(40, dtype=torch.float64)
    liar[7] = 1
    found = robust_mean(torch.cat([said, liar[None]]), 1)
    assert_close(found, said.mean(0))


def test_the_first_round_is_training_alone() -> None:
    client, alone = public_client(), public_client()
    targets = torch.full((10, 3), 1 / 3)
    Cronus().client_update(client, {"clock": START["clock"] + 4, "probabilities": targets})
    train(alone, lambda x, y: cross_entropy(alone.model(x), y))
    assert all(alone.model.state_dict()[n].equal(t) for n, t in client.model.state_dict().items())


def test_joint_training_written_out() -> None:
    """One step over 12 private and 10 public samples together, each counting the same."""
    client, twin = public_client(lr=0.5, batch_size=22), public_client()
    client.memory = {"clock": START["clock"]}  # not its first round
    targets = torch.randn(10, 3).softmax(1)
    Cronus().client_update(client, {"clock": START["clock"] + 1, "probabilities": targets})
    own = twin.data.train
    private = cross_entropy(twin.model(own.x), own.labels, reduction="sum")
    public = -(targets * twin.model(PUBLIC.x).log_softmax(1)).sum()
    ((private + public) / 22).backward()
    for weight, moved in zip(twin.model.parameters(), client.model.parameters(), strict=True):
        assert weight.grad is not None
        assert_close(moved, weight - 0.5 * weight.grad)


def test_public_labels_are_not_read() -> None:
    states = []
    for labels in (PUBLIC.y, torch.arange(10) % 3):
        client = replace(public_client(), public_examples=replace(PUBLIC, y=labels))
        client.memory = {"clock": START["clock"]}  # not its first round
        targets = torch.full((10, 3), 1 / 3)
        Cronus().client_update(client, {"clock": START["clock"] + 1, "probabilities": targets})
        states.append(client.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_half_of_the_clients_cannot_be_outliers() -> None:
    with pytest.raises(ConfigError, match=r"method\.epsilon"):
        quick("method.name=cronus", *HELD_OUT, "method.epsilon=0.5")
