"""FCCL: the correlation loss by hand, the three phases, the frozen networks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.losses import distill
from fedgh.core.types import Client, Payload, Recipient
from fedgh.errors import MethodError
from fedgh.methods.fccl import FCCL
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.rounds import shapes_of
from tests.support.tiny import quick

QUICK = FCCL(pretrain_epochs=1)
START = QUICK.init_server(TASK, [], torch.Generator())


def a_member(method: FCCL = QUICK, **local: Any) -> Client:
    client = public_client(**local)
    method.init_client(client)
    return client


def told(number: int, logits: torch.Tensor) -> Payload:
    return {"clock": torch.tensor([number], dtype=torch.int32), "logits": logits}


def test_the_correlation_loss_by_hand() -> None:
    """Standard deviations divide by B - 1 and the product by B, so M_uu is (B - 1) / B."""
    z = torch.tensor([[0.0, 0.0], [2.0, 4.0]])
    assert QUICK.correlation_loss(z, z).item() == pytest.approx(0.52295, abs=1e-4)
    z = torch.tensor([[0.0, 4.0], [2.0, 0.0]])
    assert QUICK.correlation_loss(z, z).item() == pytest.approx(0.50255, abs=1e-4)


def test_constant_logits_give_no_nan() -> None:
    z = torch.ones(4, 2, requires_grad=True)
    loss = QUICK.correlation_loss(z, torch.randn(4, 2))
    loss.backward()
    assert loss.isfinite()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_the_mean_of_uploads_and_a_round_without_them() -> None:
    after = QUICK.server_update(
        START, sent([{"logits": torch.zeros(2, 3)}, {"logits": torch.ones(2, 3)}])
    )
    assert after["logits"].unique().tolist() == [0.5]
    assert QUICK.server_update(after, sent([])) is after


def test_a_client_trains_alone_once_before_its_first_round() -> None:
    client = a_member()
    QUICK.client_update(client, told(5, torch.randn(10, 3)))  # a newcomer
    assert {"pretrain_loss", "public_loss", "train_loss"} <= client.metrics.keys()
    first = {n: t.clone() for n, t in client.modules["first"].state_dict().items()}
    client.metrics, client.round = {}, 2
    QUICK.client_update(client, told(6, torch.randn(10, 3)))
    assert "pretrain_loss" not in client.metrics
    assert all(first[n].equal(t) for n, t in client.modules["first"].state_dict().items())
    assert client.modules.keys() == {"first"}


def test_nothing_received_leaves_the_public_phase_out() -> None:
    client = a_member()
    QUICK.client_update(client, START)
    assert "public_loss" not in client.metrics


def test_the_public_phase_written_out() -> None:
    """One Adam step; a bias of the header changes no correlation, so only rounding moves it."""
    method = FCCL(public_batch=10, public_lr=0.01)
    client, twin = a_member(lr=1e-12), public_client()
    client.memory = dict(START)  # not its first round
    mean = torch.randn(10, 3)
    adam = torch.optim.Adam(twin.model.parameters(), lr=0.01)
    method.correlation_loss(twin.model(PUBLIC.x), mean).backward()
    adam.step()
    method.client_update(client, told(1, mean))
    expected = twin.model.state_dict()
    for name, moved in client.model.state_dict().items():
        if name != "header.bias":
            assert_close(moved, expected[name])


def test_the_private_phase_written_out() -> None:
    """Two SGD steps on own samples, pulled by two frozen networks."""
    client, twin = a_member(lr=0.5, batch_size=12, epochs=2), public_client()
    client.memory = dict(START)  # not its first round
    first, last = client.modules["first"], public_client().model
    first.load_state_dict({n: t + 0.1 for n, t in first.state_dict().items()})
    own, sgd = twin.data.train, torch.optim.SGD(twin.model.parameters(), lr=0.5)
    for _ in range(2):
        z = twin.model(own.x)
        loss = cross_entropy(z, own.labels) + distill(last(own.x), z) + distill(first(own.x), z)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    QUICK.client_update(client, START)
    assert_close(client.model.state_dict(), twin.model.state_dict())


def test_what_crosses() -> None:
    method, shapes = replace(QUICK, per_round=6), shapes_of(TASK)
    up = method.client_update(a_member(method), START)
    assert wire.read(wire.to_bytes(up), method.upload_specs(shapes))["logits"].shape == (6, 3)
    down = method.broadcast(method.server_update(START, sent([up])), Recipient(2))
    wire.read(wire.to_bytes(down), method.download_specs(shapes))


def test_public_labels_are_not_read_and_the_control_keeps_its_own_logits() -> None:
    states = []
    for labels in (PUBLIC.y, torch.arange(10) % 3):
        client = replace(a_member(), public_examples=replace(PUBLIC, y=labels))
        QUICK.client_update(client, told(1, torch.ones(10, 3).cumsum(0)))
        states.append(client.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])
    method, client = replace(QUICK, learn_from="own"), a_member()
    up = method.client_update(client, told(1, torch.randn(10, 3)))
    assert "public_loss" not in client.metrics  # it had said nothing before
    assert client.memory["logits"].equal(up["logits"])


def test_the_control_learns_from_its_own_last_logits() -> None:
    method = replace(QUICK, learn_from="own", per_round=6)
    client, plain = a_member(), a_member()
    up = method.client_update(client, START)
    replace(method, learn_from="all").client_update(plain, START)
    for each in (client, plain):
        each.round = 2
    method.client_update(client, told(1, torch.randn(6, 3)))
    replace(method, learn_from="all").client_update(plain, told(1, up["logits"]))
    assert_close(client.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)
    assert "public_loss" in client.metrics


def test_public_data_are_needed() -> None:
    with pytest.raises(MethodError, match="fccl needs public data"):
        quick("method.name=fccl")
