"""FedZKT: losses by hand, who is taught what, and a generator that looks for disagreement."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.average import network_state
from fedgh.core.losses import distill
from fedgh.core.types import Payload, Recipient, SplitModel, Task, Upload
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, MethodError, WireError
from fedgh.methods.fedzkt import FedZKT, disagreement
from fedgh.training import loop
from tests.support.rounds import shapes_of
from tests.support.tiny import a_client, mlp, noisy, quick

TASK = Task(num_classes=2, rep_dim=3, num_clients=3, rounds=9, seed=0, input_shape=(4,))
SMALL = FedZKT(shared="tests.support.tiny:mlp", server_steps=3, server_batch=8, noise=5)
LN3 = math.log(3)


def network(client: int) -> SplitModel:
    """Clients with two architectures: client 1 has batch normalisation and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(client + 2)
        return SplitModel((noisy if client == 1 else mlp)((4,), 3), nn.Linear(3, 2))


def start(method: FedZKT = SMALL) -> Payload:
    return method.init_server(TASK, [], torch.Generator())


def round_of(*clients: int, number: int = 1) -> Uploads:
    sent = [Upload(k, 0, network_state(network(k))) for k in clients]
    return Uploads(sent, TASK, number, make_network=network)


def test_disagreement_by_hand() -> None:
    """l1 of outputs; of softmax(mean logits) it would be 0.267949, of logits 0.549306."""
    clients = [torch.tensor([[LN3, 0.0]]), torch.zeros(1, 2)]
    ensemble = torch.stack([logits.softmax(1) for logits in clients]).mean(0)
    assert_close(ensemble, torch.tensor([[0.625, 0.375]]))
    assert float(disagreement(torch.zeros(1, 2), ensemble)) == pytest.approx(0.25)
    twice = disagreement(torch.zeros(2, 2), ensemble.repeat(2, 1))
    assert float(twice) == pytest.approx(0.25)  # the mean over the batch


def test_transfer_by_hand() -> None:
    found = distill(torch.zeros(1, 2), torch.tensor([[LN3, 0.0]]))
    assert float(found) == pytest.approx(0.143841, abs=1e-6)  # the other direction: 0.130812


def test_the_penalty_by_hand() -> None:
    """w = 1, received 0.5: penalty 0.25, gradient 1."""
    model = SplitModel(nn.Identity(), nn.Linear(1, 2, bias=False))
    nn.init.constant_(model.header.weight, 1.0)
    down = {"header.weight": torch.tensor([[0.5], [1.0]])}
    x, y = torch.zeros(1, 1), torch.tensor([0])
    loss = FedZKT().loss(model, x, y, down)
    assert loss.item() == pytest.approx(math.log(2) + 0.25)
    loss.backward()
    assert model.header.weight.grad is not None
    assert model.header.weight.grad.flatten().tolist() == [1.0, 0.0]
    assert FedZKT(mu=0.5).loss(model, x, y, down).item() == pytest.approx(math.log(2) + 0.125)
    assert FedZKT().loss(model, x, y, {}).item() == pytest.approx(math.log(2))


def linear(slope: float) -> SplitModel:
    """Logits (slope x, 0)."""
    model = SplitModel(nn.Identity(), nn.Linear(1, 2))
    model.header.load_state_dict({"weight": torch.tensor([[slope], [0.0]]), "bias": torch.zeros(2)})
    return model


class Constant(nn.Module):
    """A generator whose input is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(0.5))

    def forward(self, count: int, rng: torch.Generator) -> Tensor:
        return self.x.expand(count, 1)


def test_the_generator_looks_for_inputs_on_which_networks_disagree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With F = (0, 0), f = (x, 0) and x > 0, a step of G makes x larger."""
    nets = nn.ModuleDict({"generator": Constant(), "global": linear(0.0)})
    monkeypatch.setattr(FedZKT, "networks", lambda method, task: nets)
    method = FedZKT(server_steps=1, server_batch=2, server_lr=1e-9, generator_lr=0.1)
    server = network_state(nets)
    sent = [Upload(0, 0, network_state(linear(1.0)))]
    uploads = Uploads(sent, TASK, 1, make_network=lambda _: linear(0.0))
    after = method.server_update(server, uploads)
    assert float(after["generator.x"]) == pytest.approx(0.6)
    # |sigmoid(0.5) - 0.5| twice, before the step
    expected = 2 * (1 / (1 + math.exp(-0.5)) - 0.5)
    assert uploads.metrics["generator_loss"] == pytest.approx(-expected)
    assert uploads.metrics["server_loss"] == pytest.approx(expected)


def test_the_first_loop_changes_no_client_and_the_second_no_other_network() -> None:
    """A learning rate of nearly nothing for SGD: only the generator moves."""
    method = FedZKT(
        shared="tests.support.tiny:mlp", server_steps=3, server_batch=8, noise=5, server_lr=1e-12
    )
    before = start(method)
    after = method.server_update(before, round_of(0, 2))
    for client in (0, 2):
        taught = method.broadcast(after, Recipient(client))
        assert_close(taught, network_state(network(client)))
    assert_close(
        {n: t for n, t in after.items() if n.startswith("global.")},
        {n: t for n, t in before.items() if n.startswith("global.")},
    )
    moved = [n for n in before if n.startswith("generator.") and not after[n].equal(before[n])]
    assert moved


def test_all_learn_and_moments_of_the_generator_are_kept() -> None:
    server = SMALL.server_update(start(), round_of(0, 1))
    assert float(server["adam.step.0"]) == 3
    again = SMALL.server_update(server, round_of(0, 1, number=2))
    assert float(again["adam.step.0"]) == 6
    for client in (0, 1):
        taught, own = SMALL.broadcast(server, Recipient(client)), network_state(network(client))
        assert not taught["header.weight"].equal(own["header.weight"])
    changed = [n for n in start() if n.endswith("weight") and not server[n].equal(start()[n])]
    assert len(changed) == sum(n.endswith("weight") for n in start())


def test_a_round_of_the_server_written_out() -> None:
    method = FedZKT(
        *("tests.support.tiny:mlp", 2, 8, 0.3, 0.01, 5)  # shared, steps, batch, rates, noise
    )
    uploads = round_of(0, 2)
    rng = uploads.stream("noise")
    after = method.server_update(start(method), uploads)

    nets = method.networks(TASK)
    generator, shared = nets["generator"].train(), nets["global"].train()
    clients = [network(k).eval() for k in (0, 2)]
    adam = torch.optim.Adam(generator.parameters(), lr=0.01)
    sgd = torch.optim.SGD(shared.parameters(), lr=0.3)
    for _ in range(2):
        x = generator(8, rng)
        ensemble = (clients[0](x).softmax(1) + clients[1](x).softmax(1)) / 2
        adam.zero_grad()
        (-(shared(x).softmax(1) - ensemble).abs().sum(1).mean()).backward()
        adam.step()
        sgd.zero_grad()
        x, ensemble = x.detach(), ensemble.detach()
        (shared(x).softmax(1) - ensemble).abs().sum(1).mean().backward()
        sgd.step()
    students = [torch.optim.SGD(client.parameters(), lr=0.3) for client in clients]
    for _ in range(2):
        x = generator.eval()(8, rng).detach()
        p = shared(x).softmax(1).detach()
        for client, student in zip(clients, students, strict=True):
            student.zero_grad()
            (p * (p.log() - client.train()(x).log_softmax(1))).sum(1).mean().backward()
            student.step()
    cancelled = {"generator.layers.0.bias", "generator.layers.3.bias"}  # by batch normalisation
    expected = {n: t for n, t in network_state(nets).items() if n not in cancelled}
    assert_close({name: after[name] for name in expected}, expected, rtol=1e-4, atol=1e-4)
    for number, client in zip((0, 2), clients, strict=True):
        taught = method.broadcast(after, Recipient(number))
        assert_close(taught, network_state(client), rtol=1e-4, atol=1e-4)


def test_each_gets_its_own_network_back_and_a_newcomer_nothing() -> None:
    server = SMALL.server_update(start(), round_of(0, 1))
    later = SMALL.server_update(server, round_of(1, number=2))
    waiting = SMALL.broadcast(later, Recipient(0, last_round=1))
    assert all(waiting[n].equal(t) for n, t in SMALL.broadcast(server, Recipient(0)).items())
    assert SMALL.broadcast(later, Recipient(2)) == {}
    for client in (0, 1):
        specs = SMALL.download_specs(shapes_of(TASK, network(client)))
        wire.read(wire.to_bytes(SMALL.broadcast(later, Recipient(client))), specs)
    sendable = SMALL.sendable(later)
    assert {name.split(".")[0] for name in sendable} == {"client0", "client1"}


def test_client_1_is_not_client_10() -> None:
    server = {"client10.w": torch.ones(1)}
    assert SMALL.broadcast(server, Recipient(1)) == {}


def test_a_client_starts_from_what_it_was_sent_and_is_held_near_it() -> None:
    torch.manual_seed(0)
    client = a_client(torch.randn(20, 6), torch.arange(20) % 3, lr=1e-12)
    down = {name: tensor + 1 for name, tensor in network_state(client.model).items()}
    assert_close(FedZKT().client_update(client, down), down)
    ends = []
    for mu in (0.0, 20.0):
        client = a_client(torch.randn(20, 6), torch.arange(20) % 3, lr=0.02, epochs=20)
        up = FedZKT(mu=mu).client_update(client, down)
        ends.append(sum(float((up[n] - down[n]).square().sum()) for n in down))
    assert ends[1] < ends[0] / 2


def test_a_client_that_was_sent_nothing_trains_alone() -> None:
    from fedgh.core.local import train

    states = []
    for alone in (True, False):
        torch.manual_seed(0)
        client = a_client(torch.randn(20, 6), torch.arange(20) % 3, momentum=0.9, weight_decay=0.1)
        if alone:
            train(client, lambda x, y, client=client: cross_entropy(client.model(x), y))  # type: ignore[misc]
        else:
            FedZKT().client_update(client, {})
        states.append(client.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_what_it_cannot_do_is_refused_before_anything_runs() -> None:
    secret = ["data.name=private", "data.classes=a,b,c", "method.name=fedzkt"]
    with pytest.raises(MethodError, match="fedzkt sends clients' networks"):
        quick(*secret)
    with pytest.raises(ConfigError, match=r"method\.shared = 'cnn1': the CNNs take 32x32 images"):
        quick(*secret, "data.shape=[5]", "model.extractors=mlp")
    with pytest.raises(ConfigError, match=r"method\.server_batch"):
        quick("method.name=fedzkt", "method.server_batch=1")


def test_an_upload_of_another_architecture_is_rejected(tmp_path: Path) -> None:
    words = ["method.name=fedzkt", "method.shared=mlp", "method.server_steps=1"]
    prepared = quick(*words, "method.server_batch=2", "federation.rounds=2")
    method, around = prepared.config.method, prepared.server_resources()
    (spec,) = method.upload_specs(shapes_of(prepared.task, around.network(0)))
    with pytest.raises(WireError, match="expected tensors"):
        wire.read(wire.to_bytes(network_state(around.network(1))), [spec])
    last = loop.run(prepared, tmp_path / "run").records()[-1]
    assert last.failed == last.rejected == []
    assert {"generator_loss", "server_loss", "transfer_loss"} <= last.method_metrics.keys()
