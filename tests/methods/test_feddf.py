"""FedDF: targets and steps by hand, groups of equal networks, averaging without steps."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.average import network_state
from fedgh.core.groups import group_numbers, group_prefix
from fedgh.core.losses import distill
from fedgh.core.types import Payload, Recipient, SplitModel, Upload, part
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, MethodError, WireError
from fedgh.methods.fedavg import FedAvg
from fedgh.methods.feddf import FedDF
from fedgh.models import extractor, split_model
from fedgh.training import loop
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client
from tests.support.rounds import shapes_of
from tests.support.tiny import mlp, normed, quick

METHOD = FedDF(server_steps=2, server_batch=10)


def network(client: int, seed: int | None = None) -> SplitModel:
    """Clients 0 and 2 have one architecture, client 1 another."""
    with torch.random.fork_rng():
        torch.manual_seed(client if seed is None else seed)
        return SplitModel((normed if client == 1 else mlp)((4,), 4), nn.Linear(4, 3))


def start() -> Payload:
    models = [network(0), network(1), network(2)]
    return METHOD.init_server(TASK, models, torch.Generator())


def round_of(*clients: int, samples: Sequence[int] = (1, 3, 2)) -> Uploads:
    groups = group_numbers([network(0), network(1), network(2)])
    sent = [Upload(k, samples[k], network_state(network(k)), groups[k]) for k in clients]
    return Uploads(sent, TASK, 1, public_examples=PUBLIC, make_network=network)


def test_the_target_and_the_loss_by_hand() -> None:
    teacher = torch.tensor([[2.0, 0.0], [0.0, 0.0]]).mean(0, keepdim=True)
    assert_close(teacher.softmax(1), torch.tensor([[0.731059, 0.268941]]))
    student = torch.zeros(1, 2, requires_grad=True)
    loss = distill(teacher, student)
    assert loss.item() == pytest.approx(0.110944, abs=1e-6)
    loss.backward()
    assert student.grad is not None
    assert_close(student.grad, torch.tensor([[-0.231059, 0.231059]]))
    bias = torch.zeros(1, 2, requires_grad=True)
    adam = torch.optim.Adam([bias], lr=0.001)
    distill(teacher, bias).backward()
    adam.step()
    assert_close(bias.detach(), torch.tensor([[0.001, -0.001]]))


@pytest.mark.parametrize(("uniform", "mean"), [(False, 3.0), (True, 2.0)])
def test_the_start_is_weighted_by_samples_or_not(uniform: bool, mean: float) -> None:
    method = FedDF(server_steps=0, uniform=uniform)
    state = network_state(network(0))
    sent = [
        Upload(k, samples, {n: torch.full_like(t, value) for n, t in state.items()})
        for k, (samples, value) in enumerate([(1, 0.0), (3, 4.0)])
    ]
    after = method.server_update(start(), Uploads(sent, TASK, 1, public_examples=PUBLIC))
    assert after["group0.header.bias"].unique().tolist() == [mean]


def test_without_steps_it_is_fedavg_within_each_group_bit_for_bit() -> None:
    method = replace(METHOD, server_steps=0)
    after = method.server_update(start(), round_of(0, 1, 2))
    expected = FedAvg().server_update({}, Uploads(list(round_of(0, 2)), TASK, 1))
    found = part(after, group_prefix(0))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    alone = network_state(network(1))
    assert all(part(after, group_prefix(1))[name].equal(alone[name]) for name in alone)


def test_a_round_of_the_server_written_out() -> None:
    """Client 0's group starts from clients 0 and 2, and is taught by 0, 1 and 2."""
    uploads = round_of(0, 1, 2)
    after = METHOD.server_update(start(), uploads)
    teacher = torch.stack([network(k).eval()(PUBLIC.x) for k in (0, 1, 2)]).mean(0).detach()
    losses = []
    for group, members in {0: (0, 2), 1: (1,)}.items():
        weights = {0: 1, 1: 3, 2: 2}
        total = sum(weights[k] for k in members)
        states = {k: network_state(network(k)) for k in members}
        mean = {
            name: torch.stack([weights[k] * states[k][name] for k in members]).sum(0) / total
            for name in states[members[0]]
        }
        student = network(members[0]).train()
        student.load_state_dict(student.state_dict() | mean)
        adam = torch.optim.Adam(student.parameters(), lr=0.001)
        for step in range(2):
            adam.param_groups[0]["lr"] = 0.001 * (1 if step == 0 else 0.5)  # cosine to zero
            adam.zero_grad()
            loss = distill(teacher, student(PUBLIC.x))
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 5.0)
            adam.step()
            losses.append(loss.item())
        found = part(after, group_prefix(group))
        for name, tensor in network_state(student).items():
            # Batch normalisation cancels the bias before it: only rounding moves it.
            if name not in ("extractor.1.bias", "extractor.2.running_mean") or group == 0:
                assert_close(found[name], tensor, atol=2e-5, rtol=1e-3)
    assert uploads.metrics["server_loss"] == pytest.approx(sum(losses) / 4, rel=1e-4)


def test_a_single_participant_is_its_own_teacher() -> None:
    uploads = round_of(0)
    METHOD.server_update(start(), uploads)
    assert uploads.metrics["server_loss"] == pytest.approx(0, abs=1e-6)


def test_an_architecture_without_participants_keeps_its_network() -> None:
    before = start()
    after = METHOD.server_update(before, round_of(0, 2))
    kept = part(before, group_prefix(1))
    assert all(part(after, group_prefix(1))[name].equal(kept[name]) for name in kept)
    nothing = METHOD.server_update(before, round_of())
    assert all(nothing[name].equal(before[name]) for name in before)


def test_each_client_gets_the_network_of_its_architecture_a_newcomer_too() -> None:
    server = METHOD.server_update(start(), round_of(0, 1))
    for client, group in ((1, 1), (7, 0)):
        down = METHOD.broadcast(server, Recipient(client, group=group))
        assert down.keys() == network_state(network(group)).keys()
        assert all(down[name].equal(server[f"group{group}.{name}"]) for name in down)


def test_a_network_of_another_architecture_is_refused() -> None:
    specs = METHOD.upload_specs(shapes_of(TASK, network(0)))
    messages = [wire.to_bytes(network_state(network(client))) for client in (0, 1, 2)]
    assert wire.read(messages[2], specs).keys() == network_state(network(0)).keys()
    with pytest.raises(WireError):
        wire.read(messages[1], specs)


def test_the_received_network_is_evaluated_before_training() -> None:
    client = public_client(lr=1e-12)
    down = {n: t + 1 for n, t in network_state(client.model).items()}
    assert_close(METHOD.client_update(client, down), down)
    held = client.data.validation
    expected = (client.model.eval()(held.x[held.index]).argmax(1) == held.labels).float().mean()
    assert client.metrics["received_accuracy"] == pytest.approx(float(expected))


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="feddf needs public data"):
        quick("method.name=feddf")
    with pytest.raises(ConfigError, match=r"method\.server_steps"):
        quick("method.name=feddf", *HELD_OUT, "method.server_steps=-1")
    secret = ["data.name=private", "data.classes=a,b,c", "public.name=digits"]
    with pytest.raises(MethodError, match="feddf sends clients' networks"):
        quick("method.name=feddf", *secret)


def nbytes(field: wire.Field) -> int:
    return field.dtype.itemsize * prod(size for size in field.shape if isinstance(size, int))


def test_bytes_of_the_paper_s_networks_both_ways() -> None:
    """By hand for CNN-1: 1,216 + 12,832 + 1,602,000 + 1,000,500 + 5,010 weights of 4 bytes."""
    task = replace(TASK, num_classes=10, rep_dim=500, input_shape=(3, 32, 32))
    costs = []
    for name in ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5"):
        shapes = shapes_of(task, split_model(extractor(name), task))
        (up,), (down,) = METHOD.upload_specs(shapes), METHOD.download_specs(shapes)
        costs.append(sum(map(nbytes, [*up.values(), *down.values()])))
    assert (costs[0], costs[4]) == (20_972_464, 5_360_464)
    assert costs[0] == 2 * 4 * (1_216 + 12_832 + 1_602_000 + 1_000_500 + 5_010)
    assert round(sum(costs) / 5) == 11_980_278


def test_a_run_with_two_architectures(tmp_path: Path) -> None:
    words = ["method.name=feddf", *HELD_OUT, "method.server_steps=2", "federation.rounds=2"]
    last = loop.run(quick(*words), tmp_path / "run").records()[-1]
    assert last.failed == last.rejected == []
    assert {"server_loss", "received_accuracy"} <= last.method_metrics.keys()
