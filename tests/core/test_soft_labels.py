"""Quantised outputs: the nearest ones, their messages, and changes that both sides understand."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedgh.core import soft_labels, wire
from fedgh.core.message import QuantisedOutputs
from fedgh.core.restart import restart
from fedgh.core.types import Client, Payload, Task, Upload
from fedgh.errors import WireError
from fedgh.methods.standalone import Standalone
from tests.support.rounds import shapes_of, uploads_of
from tests.support.tiny import a_client, quick

SAMPLES, CLASSES = 20, 3
TASK = Task(CLASSES, rep_dim=4, num_clients=4, rounds=9, seed=0, public_size=SAMPLES)


def clock(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.int32)


def certain(labels: Tensor) -> Tensor:
    """Return the outputs of a client that predicts these classes."""
    return torch.eye(CLASSES)[labels]


def a_sender(round: int = 1) -> Client:
    client = a_client(torch.randn(4, 2), torch.arange(4) % CLASSES)
    client.round = round
    return client


def collected(server: Payload, round: int, *sent: tuple[int, Payload]) -> Payload:
    uploads = [Upload(client, 0, payload) for client, payload in sent]
    return soft_labels.collect(server, uploads_of(uploads, TASK, round), 1)[0]


@pytest.mark.parametrize(
    ("p", "bits", "expected"),
    [
        ([0.5, 0.3, 0.2], 2, [1, 1, 1]),
        ([0.7, 0.2, 0.1], 2, [2, 1, 0]),
        ([0.5, 0.3, 0.2], 1, 0),
        ([0.2, 0.4, 0.4], 1, 1),  # the first of two
        ([1.0, 0.0, 0.0], 8, [255, 0, 0]),
        ([1 / 3, 1 / 3, 1 / 3], 2, [1, 1, 1]),
        ([0.5, 0.5, 0.0], 2, [2, 1, 0]),  # the first of two
    ],
)
def test_outputs_are_quantised_by_hand(p: list[float], bits: int, expected: object) -> None:
    (found,) = soft_labels.quantise(torch.tensor([p]), bits)
    assert found.dtype == torch.uint8
    assert found.tolist() == expected


@pytest.mark.parametrize("bits", [2, 3])
def test_no_other_quantised_outputs_are_nearer(bits: int) -> None:
    largest = 2**bits - 1
    grid = [q for q in product(range(largest + 1), repeat=CLASSES) if sum(q) == largest]
    possible = torch.tensor(grid) / largest
    p = torch.randn(50, CLASSES, generator=torch.Generator().manual_seed(0)).softmax(1)
    found = soft_labels.quantise(p, bits) / largest
    best = torch.cdist(p, possible, p=1).amin(1)
    assert_close((found - p).abs().sum(1), best, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bits", [1, 2, 5, 8, 32])
def test_what_is_packed_can_be_unpacked(bits: int) -> None:
    p = torch.randn(SAMPLES, CLASSES).softmax(1)
    packed = soft_labels.pack(p, bits)
    (spec,) = soft_labels.message(bits).specs(Standalone(), shapes_of(TASK))
    read = wire.read(wire.to_bytes(packed), [spec])
    soft_labels.message(bits).check(read)
    again = soft_labels.unpack(read, CLASSES, bits)
    assert again is not None
    assert_close(again.sum(1), torch.ones(SAMPLES))
    assert bool(((again - p).abs() <= 1 / (2**bits - 1) + 1e-6).all())
    assert soft_labels.unpack({"known": clock(1)}, CLASSES, bits) is None


def test_the_difference_and_its_entropy_by_hand() -> None:
    """The labels (3, 2, 1, 2) after (3, 1, 1, 2): one of four symbols differs."""
    client = a_sender(round=2)
    client.memory = {"labels": torch.tensor([2, 0, 0, 1]).byte(), "round": clock(1)}
    soft_labels.upload(client, certain(torch.tensor([2, 1, 0, 1])), 1, known=clock(1))
    assert client.metrics["delta_bits"] == pytest.approx(0.81128, abs=1e-5)
    soft_labels.upload(client, certain(torch.tensor([2, 1, 0, 1])), 1, known=clock(2))
    assert client.metrics["delta_bits"] == 0
    soft_labels.upload(client, certain(torch.tensor([2, 1, 0, 1])), 1, known=clock(0))
    assert client.metrics["delta_bits"] == pytest.approx(1.5)  # nothing is known: all labels


@pytest.mark.parametrize(("changed", "size"), [(0, 0), (1, 5), (3, 15), (4, 20), (5, 20), (20, 20)])
def test_the_smaller_message_is_sent(changed: int, size: int) -> None:
    client, labels = a_sender(), torch.arange(SAMPLES) % CLASSES
    first = soft_labels.upload(client, certain(labels), 1, known=clock(0))
    assert first.keys() == {"labels"}
    client.round = 2
    new = torch.where(torch.arange(SAMPLES) < changed, (labels + 1) % CLASSES, labels)
    up = soft_labels.upload(client, certain(new), 1, known=clock(1))
    assert wire.nbytes(up) == size
    assert ("where" in up) == (size < SAMPLES)
    specs = QuantisedOutputs(1, changes=True).specs(Standalone(), shapes_of(TASK))
    read = wire.read(wire.to_bytes(up), specs)
    server = collected(collected({}, 1, (3, first)), 2, (3, read))
    assert server["client3.labels"].tolist() == new.tolist()
    assert soft_labels.known(server, 3).tolist() == [2]


def test_changes_of_several_bits_are_whole_rows() -> None:
    client, p = a_sender(), torch.randn(SAMPLES, CLASSES).softmax(1)
    first = soft_labels.upload(client, p, 4, known=clock(0))
    changed = torch.cat([1 - p[:2], p[2:]]) / torch.cat([torch.full((2, 1), 2), torch.ones(18, 1)])
    client.round = 2
    up = soft_labels.upload(client, changed, 4, known=clock(1))
    assert up["where"].tolist() == [0, 1]
    assert wire.nbytes(up) == 2 * (4 + CLASSES)
    uploads = [Upload(0, 0, first)], [Upload(0, 0, up)]
    server: Payload = {}
    for number, sent in enumerate(uploads, 1):
        server, mean = soft_labels.collect(server, uploads_of(sent, TASK, number), 4)
    assert server["client0.labels"].equal(soft_labels.quantise(changed, 4))
    assert mean is not None
    assert_close(mean, soft_labels.quantise(changed, 4) / 15)


def test_after_a_lost_upload_everything_is_sent_again() -> None:
    """The server has the upload of round 1, the client remembers the lost one of round 2."""
    client, labels = a_sender(), torch.arange(SAMPLES) % CLASSES
    first = soft_labels.upload(client, certain(labels), 1, known=clock(0))
    server = collected({}, 1, (0, first))
    client.round = 2
    soft_labels.upload(client, certain(labels.flip(0)), 1, soft_labels.known(server, 0))
    client.round = 3
    up = soft_labels.upload(client, certain(labels.flip(0)), 1, soft_labels.known(server, 0))
    assert up.keys() == {"labels"}  # although nothing changed since round 2
    server = collected(server, 3, (0, up))
    client.round = 5  # it sat out a round: the server still has what it sent
    up = soft_labels.upload(client, certain(labels.flip(0)), 1, soft_labels.known(server, 0))
    assert up["where"].tolist() == []
    assert collected(server, 5, (0, up))["client0.labels"].tolist() == labels.flip(0).tolist()


def test_a_client_or_a_server_without_memory_gets_everything() -> None:
    labels = torch.arange(SAMPLES) % CLASSES
    server = collected({}, 1, (0, soft_labels.upload(a_sender(), certain(labels), 1, clock(0))))
    new_client = a_sender(round=2)
    up = soft_labels.upload(new_client, certain(labels), 1, soft_labels.known(server, 0))
    assert up.keys() == {"labels"}
    new_client.round = 3
    up = soft_labels.upload(new_client, certain(labels), 1, soft_labels.known({}, 0))
    assert up.keys() == {"labels"}


def test_changes_of_nothing_are_ignored() -> None:
    """No honest client sends them."""
    up = {"where": torch.tensor([1]).int(), "labels": torch.tensor([2]).byte()}
    uploads = uploads_of([Upload(0, 0, up)], TASK)
    assert soft_labels.collect({}, uploads, 1) == ({}, None)
    whole = {"labels": torch.zeros(SAMPLES).byte()}
    uploads = uploads_of([Upload(0, 0, up), Upload(1, 0, whole)], TASK)
    server, mean = soft_labels.collect({}, uploads, 1)
    assert server.keys() == {"client1.labels", "client1.round"}
    assert mean is not None
    assert mean[:, 0].eq(1).all()


def test_the_mean_of_votes_by_hand() -> None:
    sent = [
        Upload(k, 0, {"labels": torch.full((SAMPLES,), c).byte()}) for k, c in enumerate((0, 0, 2))
    ]
    _, mean = soft_labels.collect({}, uploads_of(sent, TASK), 1)
    assert mean is not None
    assert_close(mean[0], torch.tensor([2 / 3, 0, 1 / 3]))


def test_impossible_messages_are_rejected() -> None:
    message = QuantisedOutputs(2, changes=True)
    rows = torch.tensor([[3, 0, 0], [1, 1, 1]]).byte()
    message.check({"where": torch.tensor([4, 7]).int(), "labels": rows})
    with pytest.raises(WireError, match="'where' does not ascend"):
        message.check({"where": torch.tensor([7, 7]).int(), "labels": rows})
    with pytest.raises(WireError, match="'labels' has a row whose sum is not 3"):
        message.check({"labels": rows - torch.tensor([1, 0, 0]).byte()})
    specs = QuantisedOutputs(1, changes=True).specs(Standalone(), shapes_of(TASK))
    for payload, why in (
        ({"labels": torch.full((SAMPLES,), CLASSES).byte()}, "values above 2"),
        ({"where": torch.tensor([SAMPLES]).int(), "labels": torch.zeros(1).byte()}, "above 19"),
        ({"where": torch.tensor([0]).int(), "labels": torch.zeros(2).byte()}, "has shape"),
        ({"labels": torch.zeros(3).byte()}, "has shape"),
    ):
        with pytest.raises(WireError, match=why):
            wire.read(wire.to_bytes(payload), specs)


def test_clients_of_one_architecture_restart_with_the_same_weights() -> None:
    blueprint = quick().blueprint()
    clients = [blueprint.make(k) for k in (0, 2, 1)]  # client 1 has another architecture
    before = clients[0].model.header.weight.clone()
    state = torch.get_rng_state()
    for number, client in enumerate(clients):
        client.round = number + 1
        restart(client)
    assert torch.get_rng_state().equal(state)
    first, second, other = (client.model.state_dict() for client in clients)
    assert all(tensor.equal(second[name]) for name, tensor in first.items())
    assert not first["header.weight"].equal(before)
    assert first.keys() != other.keys()
