"""FjORD: losses by hand, drawn widths, statistics of each width, the weighted mean, refusals."""

from dataclasses import replace
from fractions import Fraction
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh import config
from fedgh.core import wire
from fedgh.core.average import network_state
from fedgh.core.local import train
from fedgh.core.subnet import CoordinateMean, cut, sizes_of
from fedgh.core.types import Client, Payload, Recipient, SplitModel, Task, Upload
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError
from fedgh.limits import LimitError, Limits
from fedgh.methods.fjord import FjORD
from fedgh.models.nested import Nested
from fedgh.training import loop
from fedgh.trust import FOREIGN, ForeignError
from tests.support.rounds import shapes_of
from tests.support.tiny import a_client, normed, quick

WIDTHS = [f"tests.support.tiny:normed{width}" for width in ("@1/4", "@1/2", "")]
METHOD = FjORD(widths=WIDTHS)
TASK = Task(num_classes=3, rep_dim=4, num_clients=3, rounds=9, seed=0, input_shape=(6,))


def network(width: str) -> SplitModel:
    torch.manual_seed(1)
    return SplitModel(normed((6,), 4, Fraction(width)), nn.Linear(4, 3))


NETWORKS = [network("1"), network("1/2"), network("1/4")]


def server(method: FjORD = METHOD) -> Payload:
    return method.init_server(TASK, NETWORKS, torch.Generator())


def recipient(group: int) -> Recipient:
    return Recipient(group, group=group, sizes=sizes_of(network_state(NETWORKS[group])))


def a_part(width: str, **local: Any) -> Client:
    client = a_client(torch.randn(12, 6), torch.arange(12) % 3, rep_dim=4, **local)
    return replace(client, model=network(width))


def test_the_mean_is_weighted_by_samples_by_hand() -> None:
    """Samples 1, 1, 2; widths 1, 1/2, 1/2; sent (1, 2), (4), (7): 19/4 and 2."""
    whole = {"b": (2,)}
    mean = CoordinateMean(whole)
    for sent, samples in (([1.0, 2.0], 1), ([4.0], 1), ([7.0], 2)):
        mean.add({"b": torch.tensor(sent)}, cut(whole, {"b": (len(sent),)}), samples)
    assert mean.value({"b": torch.zeros(2)})["b"].tolist() == [19 / 4, 2]


def test_the_server_averages_by_samples_and_each_width_has_its_own_statistics() -> None:
    before = server()
    sent = [
        Upload(k, samples, {n: torch.full_like(t, value) for n, t in down.items()}, group=k)
        for k, (samples, value) in enumerate([(1, 1.0), (2, 4.0)])
        for down in [METHOD.broadcast(before, recipient(k))]
    ]
    after = METHOD.server_update(before, Uploads(sent, TASK, 1))
    assert after["extractor.1.bias"][:6].unique().tolist() == [3.0]
    assert after["extractor.1.bias"][6:].unique().tolist() == [1.0]
    assert after["width0.extractor.2.running_mean"].unique().tolist() == [3.0]
    assert after["width1.extractor.2.running_mean"].unique().tolist() == [3.0]
    assert after["width2.extractor.2.running_mean"].unique().tolist() == [1.0]
    again = METHOD.server_update(before, Uploads(sent[1:], TASK, 1))
    assert again["extractor.1.bias"][6:].equal(before["extractor.1.bias"][6:])
    assert again["width2.extractor.2.running_mean"].equal(before["width2.extractor.2.running_mean"])
    nothing = METHOD.server_update(before, Uploads([], TASK, 1))
    assert all(nothing[name].equal(before[name]) for name in before)


def test_a_client_gets_its_part_and_the_statistics_of_its_widths() -> None:
    state = server()
    for group, known in enumerate([{0, 1, 2}, {0, 1}, {0}]):
        down = METHOD.broadcast(state, recipient(group))
        assert {int(n[5]) for n in down if n.startswith("width")} == known
        specs = METHOD.download_specs(shapes_of(TASK, NETWORKS[group]))
        assert wire.read(wire.to_bytes(down), specs).keys() == down.keys()
    assert METHOD.broadcast(state, recipient(1))["extractor.4.weight"].shape == (4, 6)


def test_the_loss_by_hand() -> None:
    """f_max = (ln 3, 0), f_p = (0, 0), y = 0: 0.287682 + 0.693147; KL would be 0.130812."""
    teacher, student = torch.tensor([[log(3), 0.0]]), torch.zeros(1, 2)
    y = torch.tensor([0])
    loss = cross_entropy(teacher, y) + cross_entropy(student, teacher.softmax(1))
    assert loss.item() == pytest.approx(0.980829, abs=1e-6)


def test_a_width_computes_what_its_network_computes_with_the_first_units() -> None:
    torch.manual_seed(0)
    model = network("1")
    nested = Nested(WIDTHS, model, TASK)
    x = torch.randn(5, 6)
    narrow = network("1/2").eval()
    positions = cut(sizes_of(network_state(model)), sizes_of(network_state(narrow)))
    state = network_state(model)
    for name in narrow.state_dict():
        if name in positions:
            narrow.state_dict()[name].copy_(state[name][positions[name]])
    for each in nested.networks:
        each.eval()
    assert_close(nested(1, x), narrow(x))
    model.eval()
    assert nested(2, x).equal(model(x))


def test_gradients_of_a_width_reach_the_first_units_only() -> None:
    model = network("1").train()
    nested = Nested(WIDTHS, model, TASK)
    nested(1, torch.randn(5, 6)).square().sum().backward()
    grad = model.get_parameter("extractor.1.weight").grad
    assert grad is not None
    assert grad[6:].abs().sum() == 0
    assert grad[:6].abs().sum() > 0


@pytest.mark.parametrize("distill", [True, False])
def test_a_step_of_training_written_out(distill: bool) -> None:
    torch.manual_seed(3)
    method = replace(METHOD, distill=distill)
    client = a_part("1", lr=0.1, batch_size=12)
    client.task = TASK
    down = method.broadcast(server(), recipient(0))
    drawn = int(torch.randint(3, (), generator=client.stream("width")))
    other = network("1")
    nested = Nested(WIDTHS, other, TASK)
    nested.load(down)
    for each in nested.networks:
        each.train()
    x, y = client.data.train.x, client.data.train.labels
    student = nested(drawn, x)
    if distill:
        teacher = student if drawn == 2 else nested(2, x)
        soft = -(teacher.detach().softmax(1) * student.log_softmax(1)).sum(1).mean()
        loss = cross_entropy(teacher, y) + soft
    else:
        loss = cross_entropy(student, y)
    loss.backward()
    up = method.client_update(client, down)
    for name, weight in other.named_parameters():
        step = weight.detach() - 0.1 * (0 if weight.grad is None else weight.grad)
        assert_close(up[name], step)
    assert client.metrics["train_loss"] == pytest.approx(loss.item())
    moved = [k for k in range(3) if not same_statistics(up, down, k)]
    assert moved == sorted({drawn, 2} if distill else {drawn})


def same_statistics(one: Payload, other: Payload, width: int) -> bool:
    name = f"width{width}.extractor.2.running_mean"
    return one[name].equal(other[name])


def test_only_widths_up_to_the_own_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: set[int] = set()
    original = Nested.__call__

    def spy(self: Nested, number: int, x: torch.Tensor) -> torch.Tensor:
        drawn.add(number)
        return original(self, number, x)

    monkeypatch.setattr(Nested, "__call__", spy)
    client = a_part("1/2", epochs=20, batch_size=4, clip=1)
    client.task = TASK
    replace(METHOD, distill=False).client_update(client, METHOD.broadcast(server(), recipient(1)))
    assert drawn == {0, 1}


def test_one_width_without_distillation_is_fedavg() -> None:
    states = []
    for alone in (True, False):
        torch.manual_seed(5)
        client = a_part("1", momentum=0.9, weight_decay=0.1, epochs=2)
        client.task = TASK
        if alone:
            train(client, lambda x, y, client=client: cross_entropy(client.model(x), y))  # type: ignore[misc]
        else:
            method = FjORD(widths=WIDTHS[-1:], distill=False)
            method.client_update(client, Nested(method.widths, client.model, TASK).state())
        states.append(client.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_the_whole_network_for_everybody_equals_fedavg() -> None:
    """Two rounds with unequal numbers of samples; the statistics of the one width included."""
    own = f"model.extractors={WIDTHS[-1]}"
    words = [own, "data.partition=dirichlet", "federation.clients=4"]
    average = quick(*words, "method.name=fedavg")
    whole = quick(
        *words, "method.name=fjord", f"method.widths={WIDTHS[-1]}", "method.distill=false"
    )
    fedavg, fjord = average.config.method, whole.config.method
    plain, state = average.initial_server(), whole.initial_server()
    state = state | renamed(plain, state)
    clients = [[each.blueprint().make(k) for k in range(4)] for each in (average, whole)]
    assert len({len(client.data.train) for client in clients[0]}) > 1
    for number in (1, 2):
        sent: list[list[Upload]] = [[], []]
        for one, other in zip(*clients, strict=True):
            one.round = other.round = number
            to = Recipient(one.id, sizes=sizes_of(network_state(one.model)))
            ups = [
                fedavg.client_update(one, fedavg.broadcast(plain, to)),
                fjord.client_update(other, fjord.broadcast(state, to)),
            ]
            for uploads, up in zip(sent, ups, strict=True):
                uploads.append(Upload(one.id, len(one.data.train), up))
        plain = fedavg.server_update(plain, Uploads(sent[0], average.task, number))
        state = fjord.server_update(state, Uploads(sent[1], whole.task, number))
    expected = renamed(plain, state)
    assert len(expected) == len(plain)
    assert_close({name: state[name] for name in expected}, expected)


def renamed(network: Payload, known: Payload) -> Payload:
    """Return a network's state with the names of FjORD: statistics belong to width 0."""
    return {name if name in known else f"width0.{name}": t for name, t in network.items()}


def test_a_newcomer_gets_the_averages_of_its_widths() -> None:
    before = server()
    down = METHOD.broadcast(before, recipient(0))
    sent = {name: torch.full_like(tensor, 3.0) for name, tensor in down.items()}
    after = METHOD.server_update(before, Uploads([Upload(0, 5, sent, group=0)], TASK, 1))
    newcomer = a_part("1/2", lr=1e-12)
    newcomer.task = TASK
    received = METHOD.broadcast(after, recipient(1))
    assert {value for t in received.values() for value in t.unique().tolist()} == {3.0}
    up = METHOD.client_update(newcomer, received)
    weights = [name for name in up if not name.startswith("width")]
    assert {value for name in weights for value in up[name].unique().tolist()} == {3.0}


def test_weight_decay_acts_outside_the_drawn_width_too() -> None:
    client = a_part("1", lr=0.5, weight_decay=0.1, batch_size=12)
    client.task = TASK
    rounds = iter(range(1, 100))
    while int(torch.randint(3, (), generator=client.stream("width"))) != 0:
        client.round = next(rounds)
    down = METHOD.broadcast(server(), recipient(0))
    up = replace(METHOD, distill=False).client_update(client, down)
    outside = up["extractor.1.weight"][3:]  # of 12 units, a quarter was drawn
    assert_close(outside, down["extractor.1.weight"][3:] * (1 - 0.5 * 0.1))
    inside = up["extractor.1.weight"][:3]
    assert not torch.allclose(inside, down["extractor.1.weight"][:3] * (1 - 0.5 * 0.1))


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    words = ["method.name=fjord", "model.extractors=mlp,mlp@1/2"]
    widths = "method.widths=mlp@1/4,mlp"
    none = r"the client's network is none of method\.widths: mlp@1/4, mlp; name some of these in"
    with pytest.raises(ConfigError, match=rf"fjord, clients 1, 3: {none} model\.extractors"):
        quick(*words, widths)
    with pytest.raises(ConfigError, match=rf"fjord: {none} model\.extractors"):
        quick(*words, "model.extractors=mlp@1/2", widths)
    with pytest.raises(ConfigError, match=r"method\.widths: mlp is not a part of mlp@1/2"):
        quick(*words, "method.widths=mlp,mlp@1/2")
    with pytest.raises(ConfigError, match=r"method\.widths = 'nosuch': no extractor 'nosuch'"):
        quick(*words, "method.widths=mlp@1/2,nosuch")
    with pytest.raises(ConfigError, match=r"method\.widths: mlp is as wide as mlp"):
        quick(*words, "method.widths=mlp@1/2,mlp,mlp")
    with pytest.raises(ConfigError, match=r"method\.widths"):
        quick(*words, "method.widths=[]")
    with pytest.raises(ConfigError, match="cnn2 is not a part of cnn3"):
        quick("method.name=fjord", "model.extractors=cnn2,cnn3", "method.widths=cnn2,cnn3")


@pytest.mark.parametrize(
    "chain", ["cnn5,cnn4,cnn3,cnn1", "cnn1@1/16,cnn1@1/8", "resnet18@1/32,resnet18@1/16"]
)
def test_chains_of_networks_run(chain: str, tmp_path: Path) -> None:
    prepared = quick(
        "method.name=fjord",
        f"method.widths={chain}",
        f"model.extractors={chain}",
        *("federation.rounds=1", "model.rep_dim=8", "data.samples=16"),
    )
    (record,) = loop.run(prepared, tmp_path / "run").records()
    assert record.failed == record.rejected == []


def test_a_remote_server_cannot_name_code_or_many_networks() -> None:
    named = config.load("demo", ["method.name=fjord", f"method.widths={WIDTHS[0]}"])
    with pytest.raises(ForeignError, match=r"method\.widths"):
        FOREIGN.check_all(named)
    FOREIGN.check_all(config.load("demo", ["method.name=fjord"]))
    many = config.load("demo", ["method.name=fjord", f"method.widths={','.join(['mlp'] * 17)}"])
    with pytest.raises(LimitError, match=r"method\.widths asks for 17"):
        config.check_limits(many, Limits())
    large = config.load("demo", ["method.name=fedhenn", "method.samples=5000"])
    with pytest.raises(LimitError, match=r"method\.samples asks for 5000"):
        config.check_limits(large, Limits())
