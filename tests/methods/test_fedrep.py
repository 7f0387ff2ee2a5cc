"""FedRep: first the header with the extractor fixed, then the extractor with the header fixed."""

import pytest
import torch
from torch.testing import assert_close

from fedgh.core.average import network_state
from fedgh.core.types import Upload
from fedgh.errors import ConfigError, MethodError
from fedgh.methods.fedrep import FedRep
from tests.support.phases import another_part, one_sample, phases_of, rough_client
from tests.support.rounds import uploads_of
from tests.support.tiny import quick


def test_the_extractor_learns_under_the_new_header() -> None:
    client = one_sample(1.0, (0.0, 0.0), lr=1.0)
    method = FedRep(header_epochs=1, extractor_epochs=1)
    up = method.client_update(client, {"weight": torch.ones(1, 1)})
    assert_close(client.model.header.weight.detach(), torch.tensor([[0.5], [-0.5]]))
    assert_close(up, {"weight": torch.tensor([[1.2689414]])})


def test_the_server_weighs_all_clients_alike() -> None:
    sent = [Upload(0, 0, {"w": torch.tensor([1.0])}), Upload(1, 0, {"w": torch.tensor([3.0])})]
    assert_close(FedRep().server_update({}, uploads_of(sent)), {"w": torch.tensor([2.0])})
    assert not FedRep.weighs_by_examples


def test_each_phase_fixes_the_other_part_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with momentum and weight decay, running statistics included."""
    client = rough_client()
    own, down = network_state(client.model.header), another_part(client, "extractor")
    up, (first, second) = phases_of(FedRep(), client, down, monkeypatch)
    assert all(first.before[f"model.extractor.{name}"].equal(down[name]) for name in down)
    assert all(first.before[f"model.header.{name}"].equal(own[name]) for name in own)
    assert (first.changed(), second.changed()) == ({"header"}, {"extractor"})
    assert all(up[name].equal(second.after[f"model.extractor.{name}"]) for name in up)
    assert up.keys() == down.keys()
    assert {"header_loss", "train_loss"} <= client.metrics.keys()


def test_each_phase_has_its_own_epochs_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    client = rough_client()
    down = another_part(client, "extractor")
    method = FedRep(header_epochs=3, extractor_epochs=2)
    _, (first, second) = phases_of(method, client, down, monkeypatch)
    assert (first.arguments["epochs"], second.arguments["epochs"]) == (3, 2)
    assert first.arguments["stream"] == "header"
    assert "stream" not in second.arguments
    assert (FedRep().header_epochs, FedRep().extractor_epochs) == (10, 1)


def test_a_header_is_kept_between_the_rounds_of_its_client() -> None:
    client = rough_client()
    down = another_part(client, "extractor")
    client.round = 1
    FedRep().client_update(client, down)
    kept = network_state(client.model.header)
    client.round, client.local = 5, type(client.local)(lr=1e-12)
    FedRep().client_update(client, down)  # the client missed three rounds
    assert_close(network_state(client.model.header), kept)


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match=r"same extractor .* of clients 1, 3 differ"):
        quick("method.name=fedrep")
    with pytest.raises(ConfigError, match=r"method\.header_epochs"):
        quick("method.name=fedrep", "method.header_epochs=0")
