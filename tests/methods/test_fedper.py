"""FedPer: extractors are averaged, headers stay, both parts train together."""

import pytest
import torch
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.average import network_state
from fedgh.core.types import Task, Upload
from fedgh.errors import MethodError
from fedgh.methods.fedper import FedPer
from fedgh.models import shared_model
from tests.support.phases import another_part, one_sample, phases_of, rough_client
from tests.support.rounds import shapes_of, uploads_of
from tests.support.tiny import quick


def test_one_step_moves_both_parts_from_their_old_values() -> None:
    client = one_sample(1.0, (0.0, 0.0), lr=1.0)
    up = FedPer().client_update(client, {"weight": torch.ones(1, 1)})
    assert_close(client.model.header.weight.detach(), torch.tensor([[0.5], [-0.5]]))
    assert_close(up, {"weight": torch.ones(1, 1)})  # the old header was 0: no gradient


def test_the_server_weighs_by_samples() -> None:
    sent = [Upload(0, 1, {"w": torch.tensor([1.0])}), Upload(1, 3, {"w": torch.tensor([3.0])})]
    assert_close(FedPer().server_update({}, uploads_of(sent)), {"w": torch.tensor([2.5])})


def test_both_parts_train_in_one_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    client = rough_client()
    _, phases = phases_of(FedPer(), client, another_part(client, "extractor"), monkeypatch)
    assert [phase.changed() for phase in phases] == [{"extractor", "header"}]


def test_a_client_that_is_new_in_a_later_round_has_the_global_extractor_and_its_own_header(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newcomer = rough_client()
    newcomer.round = 3
    own, down = network_state(newcomer.model.header), another_part(newcomer, "extractor")
    _, (phase,) = phases_of(FedPer(), newcomer, down, monkeypatch)
    assert all(phase.before[f"model.extractor.{name}"].equal(down[name]) for name in down)
    assert all(phase.before[f"model.header.{name}"].equal(own[name]) for name in own)


def test_an_upload_is_the_trained_extractor_and_nothing_else() -> None:
    client = rough_client()
    up = FedPer().client_update(client, another_part(client, "extractor"))
    expected = network_state(client.model.extractor)
    assert up.keys() == expected.keys()
    assert all(up[name].equal(expected[name]) for name in up)
    assert any(name.endswith("running_var") for name in up)


def test_bytes_each_way_with_the_largest_network_of_the_paper() -> None:
    task = Task(10, 500, num_clients=2, rounds=9, seed=0, input_shape=(3, 32, 32))
    model = shared_model("cnn1", task)
    server = FedPer().init_server(task, [model], torch.Generator())
    assert wire.nbytes(server) == 10_466_192
    (spec,) = FedPer().upload_specs(shapes_of(task, model))
    assert spec.keys() == server.keys()


def test_different_extractors_are_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match=r"same extractor .* of clients 1, 3 differ"):
        quick("method.name=fedper")
