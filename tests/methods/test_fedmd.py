"""FedMD: the consensus and the digest by hand, draws of public samples, newcomers, the control."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import l1_loss
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.local import outputs
from fedgh.core.public_draw import public_draw
from fedgh.core.types import Payload, Recipient
from fedgh.errors import ConfigError, MethodError
from fedgh.methods.fedmd import FedMD
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.rounds import shapes_of
from tests.support.tiny import quick

START = FedMD().init_server(TASK, [], torch.Generator())


def clock(number: int) -> Payload:
    return {"clock": torch.tensor([number], dtype=torch.int32)}


def test_the_consensus_by_hand() -> None:
    one, two = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    server = FedMD().server_update(START, sent([{"logits": one}, {"logits": two}]))
    assert server["logits"].tolist() == [[1, 1], [1, 2]]
    assert server["clock"].tolist() == [1]
    own = one.clone().requires_grad_()
    loss = l1_loss(own, server["logits"])
    assert loss.item() == 1.25
    loss.backward()
    assert own.grad is not None
    assert own.grad[0, 0].item() == 0.25


def test_if_all_clients_are_alike_the_consensus_is_anybodys_own() -> None:
    logits = torch.randn(10, 3)
    server = FedMD().server_update(START, sent([{"logits": logits}] * 3))
    assert_close(server["logits"], logits)


def test_a_round_without_uploads_changes_nothing() -> None:
    server = {**clock(4), "logits": torch.ones(10, 3)}
    assert FedMD().server_update(server, sent([])) is server


def test_what_crosses() -> None:
    method = FedMD(per_round=6)
    shapes = shapes_of(TASK)
    client = public_client()
    up = method.client_update(client, START)
    assert wire.read(wire.to_bytes(up), method.upload_specs(shapes))["logits"].shape == (6, 3)
    server = method.server_update(START, sent([up]))
    down = method.broadcast(server, Recipient(1))  # a newcomer gets what all get
    assert wire.read(wire.to_bytes(down), method.download_specs(shapes)).keys() == down.keys()
    assert {len(spec) for spec in method.download_specs(shapes)} == {1, 2}
    assert wire.nbytes(up) + wire.nbytes(down) == 2 * 6 * 3 * 4 + 4


def test_an_upload_is_about_the_samples_of_the_next_draw() -> None:
    method, client = FedMD(per_round=6), public_client()
    up = method.client_update(client, clock(3))
    on = public_draw(PUBLIC, TASK, 4, 6)
    assert up["logits"].equal(outputs(client, client.model, on))


def test_the_digest_is_about_the_samples_of_the_consensus() -> None:
    """With the client's own logits for these samples the digest has the loss 0."""
    method, client = FedMD(per_round=6), public_client(lr=1e-12)
    own = outputs(client, client.model, public_draw(PUBLIC, TASK, 3, 6))
    method.client_update(client, {**clock(3), "logits": own})
    assert client.metrics["public_loss"] == 0
    client = public_client(lr=1e-12)
    method.client_update(client, {**clock(4), "logits": own})
    assert client.metrics["public_loss"] > 0


def test_a_step_of_the_digest_written_out() -> None:
    method = FedMD(digest_lr=0.5, digest_batch=10)
    client, twin = public_client(lr=1e-12), public_client()
    target = torch.randn(10, 3)
    method.client_update(client, {**clock(1), "logits": target})
    (twin.model(PUBLIC.x) - target).abs().mean().backward()
    for weight, moved in zip(twin.model.parameters(), client.model.parameters(), strict=True):
        assert weight.grad is not None
        assert_close(moved, weight - 0.5 * weight.grad)


def test_the_control_learns_from_its_own_last_logits() -> None:
    method = FedMD(learn_from="own", per_round=6)
    client, plain = public_client(), public_client()
    up = method.client_update(client, clock(0))
    assert client.memory["logits"].equal(up["logits"])
    FedMD(per_round=6).client_update(plain, clock(0))
    for each in (client, plain):
        each.round = 2
    method.client_update(client, {**clock(1), "logits": torch.full((6, 3), 99.0)})
    FedMD(per_round=6).client_update(plain, {**clock(1), **up})
    assert all(
        plain.state()[name].equal(client.state()[name]) for name in plain.state() if "model" in name
    )


def test_pretraining_reads_labels_once_in_the_first_round_of_a_client() -> None:
    method = FedMD(pretrain_epochs=2)
    assert method.public_labels
    assert not FedMD().public_labels
    labelled = replace(PUBLIC, y=torch.arange(10) % 3)
    client = replace(public_client(), public_examples=labelled)
    method.client_update(client, clock(5))  # a newcomer
    assert "pretrain_loss" in client.metrics
    client.metrics, client.round = {}, 2
    method.client_update(client, clock(6))
    assert "pretrain_loss" not in client.metrics


def test_public_labels_are_not_read() -> None:
    states = []
    for labels in (PUBLIC.y, torch.arange(10) % 3):
        client = replace(public_client(), public_examples=replace(PUBLIC, y=labels))
        FedMD().client_update(client, {**clock(1), "logits": torch.zeros(10, 3)})
        states.append(client.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="fedmd needs public data"):
        quick("method.name=fedmd")
    with pytest.raises(ConfigError, match=r"method\.per_round"):  # batch normalisation needs two
        quick("method.name=fedmd", *HELD_OUT, "method.per_round=1")
    with pytest.raises(ConfigError, match=r"method\.digest_epochs"):
        quick("method.name=fedmd", *HELD_OUT, "method.digest_epochs=0")
    with pytest.raises(MethodError, match="reads the labels of public data, but noise has none"):
        quick("method.name=fedmd", "public.name=noise", "method.pretrain_epochs=1")
