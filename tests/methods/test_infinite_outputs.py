"""Uploaded networks with valid weights and infinite outputs, in methods whose server distils."""

import pytest
import torch
from torch import nn

from fedgh.core import wire
from fedgh.core.average import network_spec, network_state
from fedgh.core.types import Payload, SplitModel, Upload
from fedgh.core.uploads import Uploads
from fedgh.methods.api import Method
from fedgh.methods.feddf import FedDF
from fedgh.methods.fedet import FedET
from fedgh.methods.fedkemf import FedKEMF
from fedgh.models import shared_model
from tests.support.public_client import PUBLIC, TASK
from tests.support.tiny import deep

DEEP = "tests.support.tiny:deep"
METHODS = [
    FedDF(server_steps=2),
    FedET(shared=DEEP, server_steps=2),
    FedKEMF(shared=DEEP, server_steps=2),
]


def network(client: int) -> SplitModel:
    with torch.random.fork_rng():
        torch.manual_seed(client)
        return SplitModel(deep((4,), 4), nn.Linear(4, 3))


def hostile() -> Payload:
    """Return the weights of a network in which every row has the largest norm."""
    return {name: torch.full_like(t, 500.0) for name, t in network_state(network(0)).items()}


def start(method: Method) -> Payload:
    return method.init_server(TASK, [network(0)], torch.Generator())


def round_of(*sent: Payload) -> Uploads:
    uploads = [Upload(client, 1, payload) for client, payload in enumerate(sent)]
    return Uploads(uploads, TASK, 1, public_examples=PUBLIC, make_network=network)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_an_upload_with_infinite_outputs_is_valid_left_out_and_counted(method: Method) -> None:
    message, spec = wire.to_bytes(hostile()), network_spec(network_state(network(0)))
    assert wire.read(message, [spec], max_norm=1000.0).keys() == spec.keys()
    honest = [network_state(network(client)) for client in (1, 2)]
    before, uploads = start(method), round_of(*honest, hostile())
    after = method.server_update(before, uploads)
    without = method.server_update(before, round_of(*honest))
    assert after.keys() == without.keys()
    assert all(after[name].equal(without[name]) for name in without)
    assert not all(after[name].equal(before[name]) for name in before)
    assert uploads.metrics["infinite_outputs"] == 1


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_round_with_infinite_outputs_alone_changes_nothing(method: Method) -> None:
    before, uploads = start(method), round_of(hostile(), hostile())
    after = method.server_update(before, uploads)
    assert all(after[name].equal(before[name]) for name in before)
    assert uploads.metrics == {"infinite_outputs": 2}


def test_logits_whose_squares_exceed_single_precision_can_vote() -> None:
    """Client 1 has the largest weights in seven layers; its logits are finite."""
    large = network_state(shared_model(DEEP, TASK))
    for number in range(10, 17):
        large[f"extractor.{number}.weight"] = 500 * torch.eye(4)
    large["header.weight"] = 500 * torch.ones(3, 4) * torch.tensor([[1.0], [0.0], [-1.0]])
    method = FedET(shared=DEEP, server_steps=2)
    uploads = round_of(network_state(network(1)), large)
    after = method.server_update(start(method), uploads)
    assert uploads.metrics.keys() == {"server_loss"}
    assert all(tensor.isfinite().all() for tensor in after.values())
