from pathlib import Path

import pytest
import torch

from fedgh.core import wire
from fedgh.core.ensemble import networks_of
from fedgh.core.local import eval_mode
from fedgh.errors import RunError
from fedgh.methods.standalone import Standalone
from fedgh.trained.clients import TrainedFederation
from fedgh.training import loop
from tests.support.states import states
from tests.support.tiny import a_client, numbers, quick


def test_messages_are_empty() -> None:
    client = a_client(torch.randn(30, 6), torch.arange(30) % 3)
    assert Standalone().client_update(client, {}) == {}


def test_reset_header_replaces_the_header_in_every_round() -> None:
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    headers = []
    for round in (1, 1, 2):
        client = a_client(x, y, lr=1e-12)
        client.round = round
        own = client.model.header.weight.detach().clone()
        Standalone(reset_header=True).client_update(client, {})
        assert not client.model.header.weight.allclose(own)
        headers.append(client.model.header.weight.detach())
    assert headers[0].allclose(headers[1])
    assert not headers[0].allclose(headers[2])


def test_a_run_sends_no_bytes_and_trains_all_clients(tmp_path: Path) -> None:
    run = loop.run(quick("method.name=standalone"), tmp_path / "run")
    assert all(record.bytes_total == 0 for record in run.records())
    losses = [record.train_loss or 0 for record in run.records()]
    assert losses[-1] < losses[0]


ALONE = ["method.name=standalone", "local.augment=flip", "local.momentum=0.9"]


def test_each_network_is_trained_as_if_it_were_the_only_one() -> None:
    one, two = (quick(*ALONE, f"method.networks={n}").blueprint() for n in (1, 2))
    client = two.make(1)  # it has batch normalisation and dropout
    first, second = networks_of(client)
    assert not first.header.weight.allclose(second.header.weight)
    alone = one.make(1)
    assert wire.to_bytes(alone.model.state_dict()) == wire.to_bytes(first.state_dict())
    twin = one.make(1)
    twin.model.load_state_dict(second.state_dict())
    losses = []
    for trained, method in ((client, two.method), (alone, one.method), (twin, one.method)):
        trained.round = 1
        torch.manual_seed(0)  # of dropout; the second network draws after the first
        if trained is twin:
            method.client_update(one.make(1), {})
        method.client_update(trained, {})
        losses.append(trained.metrics["train_loss"])
    assert wire.to_bytes(alone.model.state_dict()) == wire.to_bytes(first.state_dict())
    assert wire.to_bytes(twin.model.state_dict()) == wire.to_bytes(second.state_dict())
    assert losses[0] == pytest.approx((losses[1] + losses[2]) / 2)


def test_networks_predict_with_the_mean_of_their_probabilities() -> None:
    blueprint = quick("method.name=standalone", "method.networks=2").blueprint()
    client = blueprint.make(0)
    eval_mode(client)
    x = torch.rand(6, *blueprint.task.input_shape)
    one, other = (network(x).softmax(1) for network in networks_of(client))
    said = blueprint.method.logits(client, x)
    assert said.exp().allclose((one + other) / 2, atol=1e-6)
    assert said.exp().sum(1).allclose(torch.ones(6))


def test_reset_headers_differ_between_networks() -> None:
    settings = ["method.name=standalone", "method.reset_header=true", "local.lr=1e-12"]
    blueprint = quick(*settings, "method.networks=2").blueprint()
    client, alone = blueprint.make(0), quick(*settings).blueprint().make(0)
    for trained, method in ((client, blueprint.method), (alone, Standalone(reset_header=True))):
        trained.round = 1
        method.client_update(trained, {})
    _, second = networks_of(client)
    assert client.model.header.weight.equal(alone.model.header.weight)
    assert not second.header.weight.allclose(client.model.header.weight)


def test_an_ensemble_is_restored_from_a_checkpoint_and_exported(tmp_path: Path) -> None:
    settings = [
        "method.name=standalone",
        "method.networks=2",
        "model.extractors=mlp",
        "model.rep_dim=8",
    ]
    run = loop.run(quick(*settings), tmp_path / "run")
    workers = loop.run(quick(*settings, "run.engine=workers"), tmp_path / "workers")
    assert numbers(workers) == numbers(run)
    assert states(workers) == states(run)
    client = TrainedFederation.load(run.path, data=True).clients[0]
    assert client.export(tmp_path / "model.pt2", "torch-export").difference < 1e-5
    with pytest.raises(RunError, match="holds one network, and standalone predicts with more"):
        client.export(tmp_path / "model.safetensors", "safetensors")
