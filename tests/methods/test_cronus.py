"""Cronus: the robust mean by hand, joint training, the first round alone."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core.local import train
from fedgh.errors import ConfigError
from fedgh.methods.cronus import Cronus, robust_mean
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.tiny import quick

START = Cronus().init_server(TASK, [], torch.Generator())


def binary(*first: float) -> Tensor:
    p = torch.tensor(first, dtype=torch.float64)
    return torch.stack([p, 1 - p], dim=1)


def test_the_robust_mean_by_hand() -> None:
    """The limit is 3 max(.0419, .05) = .15; the liar's distance is 1.2728."""
    said = binary(0.90, 0.88, 0.92, 0.90, 0.00)
    assert robust_mean(said, 1)[0].item() == pytest.approx(0.90)
    assert robust_mean(said, 0)[0].item() == pytest.approx(0.72)
    honest = binary(0.90, 0.88, 0.92, 0.90)
    assert robust_mean(honest, 1).equal(honest.mean(0))


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


def test_half_of_the_clients_cannot_be_outliers() -> None:
    with pytest.raises(ConfigError, match=r"method\.epsilon"):
        quick("method.name=cronus", *HELD_OUT, "method.epsilon=0.5")
