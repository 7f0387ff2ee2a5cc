"""HeteroFL: which numbers are averaged, the masked loss, the scaler, refusals."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.average import network_state, network_weights
from fedgh.core.subnet import CoordinateMean, cut, sizes_of
from fedgh.core.types import Client, Payload, Recipient, SplitModel, Task, Upload
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, MethodError, WireError
from fedgh.methods.fedrolex import FedRolex
from fedgh.methods.heterofl import HeteroFL
from fedgh.models import extractor, split_model
from fedgh.models.width import units
from fedgh.training import loop
from tests.support.rounds import shapes_of
from tests.support.tiny import a_client, normed, quick

NORMED = "tests.support.tiny:normed"
METHOD = HeteroFL(shared=NORMED)
TASK = Task(num_classes=3, rep_dim=4, num_clients=3, rounds=9, seed=0, input_shape=(6,))


def network(width: str = "1") -> SplitModel:
    torch.manual_seed(1)
    return SplitModel(normed((6,), 4, Fraction(width)), nn.Linear(4, 3))


def layers(model: SplitModel) -> list[Any]:
    return list(model.extractor.children())


def server(method: HeteroFL = METHOD) -> Payload:
    return method.init_server(TASK, [network(), network("1/2")], torch.Generator())


def uploaded(client: int, width: str, value: float, *classes: int) -> Upload:
    """Return an upload in which every number has one value."""
    weights = {
        name: torch.full_like(t, value) for name, t in network_weights(network(width)).items()
    }
    rows = {name: weights[name][: len(classes)] for name in ("header.weight", "header.bias")}
    return Upload(client, 0, {**weights, **rows, "classes": torch.tensor(classes).int()})


def updated(before: Payload, *uploads: Upload, method: HeteroFL = METHOD) -> Payload:
    return method.server_update(before, Uploads(uploads, TASK, 1))


def test_each_number_is_averaged_over_the_participants_that_have_it() -> None:
    before = server()
    after = updated(before, uploaded(0, "1", 1.0, 0), uploaded(1, "1/2", 5.0, 1))
    first = after["extractor.1.weight"]  # 12 units, of which the second client has 6
    assert first[:6].unique().tolist() == [3.0]
    assert first[6:].unique().tolist() == [1.0]
    second = after["extractor.4.weight"]  # [8, 12] and [4, 6]
    assert second[:4, :6].unique().tolist() == [3.0]
    assert second[4:].unique().tolist() == second[:, 6:].unique().tolist() == [1.0]
    for name in ("header.weight", "header.bias"):  # rows of classes that a participant has
        assert after[name][0].unique().tolist() == [1.0]
        assert after[name][1].unique().tolist() == [5.0]
        assert after[name][2].equal(before[name][2])


def test_a_number_that_no_participant_has_stays_bit_for_bit() -> None:
    before = server()
    after = updated(before, uploaded(1, "1/2", 5.0, 2))
    assert after["extractor.1.bias"][6:].equal(before["extractor.1.bias"][6:])
    assert after["extractor.1.bias"][:6].unique().tolist() == [5.0]
    assert updated(before) is before


def test_the_masked_loss_by_hand() -> None:
    """Logits of absent classes are 0: they still add 1 to the sum of exponentials."""
    client = a_client(torch.zeros(2, 2), torch.tensor([0, 2]))
    client.model = SplitModel(nn.Identity(), nn.Linear(3, 3, bias=False))
    nn.init.eye_(client.model.header.weight)
    logits, y = torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([0])
    METHOD.init_client(client)
    masked = METHOD.logits(client, logits)
    assert masked.tolist() == [[2.0, 0.0, -1.0]]
    assert cross_entropy(masked, y).item() == pytest.approx(0.169846, abs=1e-6)
    plain = replace(METHOD, mask=False)
    plain.init_client(client)
    assert plain.logits(client, logits).equal(logits)
    assert cross_entropy(logits, y).item() == pytest.approx(0.349012, abs=1e-6)


def test_units_of_a_sixteenth() -> None:
    assert [units(Fraction(1, 16), count) for count in (16, 32, 2000, 500)] == [1, 2, 125, 32]


def a_part(width: str = "1/2", **local: Any) -> Client:
    client = a_client(torch.randn(12, 6), torch.arange(12) % 2, rep_dim=4, **local)
    METHOD.init_client(client)
    return replace(client, model=network(width))


def downloaded(client: Client, method: HeteroFL = METHOD) -> Payload:
    return method.broadcast(
        server(method), Recipient(0, sizes=sizes_of(network_state(client.model)))
    )


def test_a_client_gets_the_first_units_and_the_whole_header() -> None:
    down, whole = downloaded(a_part()), server()
    assert down["extractor.4.weight"].equal(whole["extractor.4.weight"][:4, :6])
    assert down["extractor.2.bias"].equal(whole["extractor.2.bias"][:6])
    assert down["header.weight"].equal(whole["header.weight"])
    assert not any("running" in name for name in down)


def test_a_newcomer_starts_from_the_averages_and_not_from_its_own_weights() -> None:
    before = server()
    after = updated(before, uploaded(0, "1", 1.0, 0, 1, 2), uploaded(1, "1/2", 5.0, 0, 1, 2))
    newcomer = a_part(lr=1e-12)
    down = METHOD.broadcast(after, Recipient(2, sizes=sizes_of(network_state(newcomer.model))))
    assert {value for t in down.values() for value in t.unique().tolist()} == {3.0}
    up = METHOD.client_update(newcomer, down)
    weights = {
        value for name, t in up.items() if name != "classes" for value in t.unique().tolist()
    }
    assert weights == {3.0}


def test_hfl_by_hand() -> None:
    """From (1, 1), changes (0.2, 0.4) and (0.4): the mean of weights is 1 minus that of changes."""
    before, whole = {"b": torch.ones(2)}, {"b": (2,)}
    changes = [torch.tensor([0.2, 0.4]), torch.tensor([0.4])]
    trained, changed = CoordinateMean(whole), CoordinateMean(whole)
    for change in changes:
        part = cut(whole, {"b": (len(change),)})
        trained.add({"b": 1 - change}, part, 1)
        changed.add({"b": change}, part, 1)
    after = trained.value(before)["b"]
    assert_close(after, torch.tensor([0.7, 0.6]))
    assert_close(after, 1 - changed.value(before)["b"])


def test_messages_are_as_declared_and_have_no_other_rows_of_the_header() -> None:
    client = a_part()
    shapes = shapes_of(TASK, client.model)
    down = downloaded(client)
    assert wire.read(wire.to_bytes(down), METHOD.download_specs(shapes)).keys() == down.keys()
    up = METHOD.client_update(client, down)
    assert up["classes"].tolist() == [0, 1]
    assert up["header.weight"].shape == (2, 4)
    wire.read(wire.to_bytes(up), METHOD.upload_specs(shapes))
    with pytest.raises(WireError):
        wire.read(wire.to_bytes(up), METHOD.upload_specs(shapes_of(TASK, network())))
    with pytest.raises(WireError, match="header"):
        wire.read(
            wire.to_bytes(up | {"header.bias": up["header.bias"][:1]}), METHOD.upload_specs(shapes)
        )


def test_a_step_of_training_written_out() -> None:
    """One step with the scaler: every hidden layer with half its units doubles its output."""
    torch.manual_seed(3)
    client = a_part(lr=0.1, batch_size=12)
    down = downloaded(client)
    expected = network("1/2")
    expected.load_state_dict(expected.state_dict() | down)
    flatten, first, norm, relu, second, _, last, _ = layers(expected.train())
    x, y = client.data.train.x, client.data.train.labels
    hidden = relu(second(relu(norm(first(flatten(x)) / 0.5))) / 0.5)
    logits = expected.header(relu(last(hidden)))
    logits = torch.cat([logits[:, :2], torch.zeros(12, 1)], dim=1)  # it has classes 0 and 1
    cross_entropy(logits, y).backward()
    up = METHOD.client_update(client, down)
    for name, weight in expected.named_parameters():
        assert weight.grad is not None
        stepped = (weight - 0.1 * weight.grad).detach()
        assert_close(up[name], stepped[:2] if name.startswith("header") else stepped)


def test_the_client_predicts_with_the_function_that_it_trained() -> None:
    torch.manual_seed(3)
    client = a_part(lr=1e-12)
    down = downloaded(client)
    up = METHOD.client_update(client, down)
    x = torch.randn(7, 6)
    trained = network("1/2")
    trained.load_state_dict(trained.state_dict() | down)
    flatten, first, norm, relu, second, _, last, _ = layers(trained.eval())
    norm.running_mean = layers(client.model)[2].running_mean
    norm.running_var = layers(client.model)[2].running_var
    scaled = relu(second(relu(norm(first(flatten(x)) / 0.5))) / 0.5)
    expected = trained.header(relu(last(scaled)))
    with torch.no_grad():
        assert_close(METHOD.global_logits(client, x), expected.detach())
        assert METHOD.logits(client, x)[:, 2].eq(0).all()
    assert_close(up["extractor.1.weight"], down["extractor.1.weight"])  # sent without the scaler


def test_the_whole_network_for_everybody_equals_fedavg() -> None:
    """Equal weights, all classes everywhere, no scaler, no mask."""
    words = ["model.extractors=mlp", "federation.clients=4", "data.partition=iid"]
    whole = ["method.name=heterofl", "method.shared=mlp", "method.scale=false", "method.mask=false"]
    average = quick(*words, "method.name=fedavg")
    states: list[Payload] = []
    for prepared in (average, quick(*words, *whole)):
        method, state = prepared.config.method, average.initial_server()
        resources, blueprint = prepared.server_resources(), prepared.blueprint()
        clients = [blueprint.make(k) for k in range(4)]
        for number in (1, 2):
            uploads = []
            for client in clients:
                client.round = number
                to = Recipient(client.id, None, 0, *resources.architecture(client.id))
                up = method.client_update(client, method.broadcast(state, to))
                uploads.append(Upload(client.id, 1, up))
            state = method.server_update(state, Uploads(uploads, prepared.task, number))
        states.append(state)
    assert_close(states[0], states[1])


@pytest.mark.parametrize("kind", [HeteroFL, FedRolex])
def test_the_order_of_tensors_in_the_state_does_not_matter(kind: type[HeteroFL]) -> None:
    """A state file sorts tensors by name: layer 10 comes before layer 2."""
    task = replace(TASK, input_shape=(3, 8, 8))
    method = kind(shared="resnet18@1/16")
    narrow = split_model(extractor("resnet18@1/32"), task)
    models = [split_model(extractor("resnet18@1/16"), task), narrow]
    state = method.init_server(task, models, torch.Generator())
    if kind is FedRolex:
        state["clock"] += 1
    mixed = {name: state[name] for name in sorted(state)}
    to = Recipient(1, sizes=sizes_of(network_state(narrow)))
    one, other = (method.broadcast(each, to) for each in (state, mixed))
    assert all(one[name].equal(other[name]) for name in one)
    sent = Upload(1, 0, {**one, "classes": torch.arange(3, dtype=torch.int32)})
    back = method.server_update(mixed, Uploads([sent], task, 1))
    assert all(back[name].equal(state[name]) for name in back if name != "clock")


def test_networks_that_are_no_parts_are_refused_before_anything_runs() -> None:
    with pytest.raises(
        ConfigError, match=r"clients 1, 3 is not a part of method\.shared; client 1"
    ):
        quick("method.name=heterofl", "method.shared=mlp", "model.extractors=mlp,perceptron")
    with pytest.raises(ConfigError, match=r"clients 0, 1, 2, 3, 4 is not .* does not fit into"):
        quick("method.name=heterofl", "method.shared=mlp@1/2", "model.extractors=mlp")
    with pytest.raises(MethodError, match="heterofl sends clients' networks"):
        quick("data.name=private", "data.classes=a,b,c", "method.name=heterofl")


def test_the_clients_of_the_paper_are_parts_of_cnn1_as_they_are(tmp_path: Path) -> None:
    words = [
        "method.name=heterofl",
        "model.extractors=cnn1,cnn2,cnn3,cnn4,cnn5",
        "federation.rounds=1",
    ]
    prepared = quick(*words, "federation.clients=5", "model.rep_dim=8")
    (record,) = loop.run(prepared, tmp_path / "run").records()
    assert record.failed == record.rejected == []


NARROW = ["method.shared=cnn1@1/8", "model.extractors=cnn1@1/8,cnn1@1/16"]
RESNET = ["method.shared=resnet18@1/16", "model.extractors=resnet18@1/16,resnet18@1/32"]


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
@pytest.mark.parametrize("networks", [NARROW, RESNET], ids=["cnn1", "resnet18"])
def test_narrow_networks_run(networks: list[str], method: str, tmp_path: Path) -> None:
    words = [f"method.name={method}", "federation.rounds=1", "data.samples=16", "model.rep_dim=8"]
    (record,) = loop.run(quick(*words, *networks), tmp_path / "run").records()
    assert record.failed == record.rejected == []
    assert record.train_loss is not None
