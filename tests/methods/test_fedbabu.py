"""FedBABU: extractors learn under one random header; clients tune after the upload."""

import pytest
import torch
from torch.testing import assert_close

from fedgh.core.average import network_state
from fedgh.core.types import Payload, Upload
from fedgh.errors import ConfigError, MethodError
from fedgh.methods import api
from fedgh.methods.fedbabu import FedBABU
from tests.support.phases import Phase, another_part, one_sample, phases_of, rough_client
from tests.support.rounds import uploads_of
from tests.support.tiny import quick


def header_of(state: Payload) -> list[float]:
    return [value for name in ("weight", "bias") for value in state[f"model.header.{name}"].ravel()]


def trained(
    method: FedBABU, seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Payload, list[Phase]]:
    """The upload and the phases of a client that starts from an extractor known to all."""
    client = rough_client(seed)
    return phases_of(method, client, another_part(client, "extractor"), monkeypatch)


def test_the_upload_and_the_tuning_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"weight": torch.tensor([[1.0], [-1.0]]), "bias": torch.zeros(2)}
    monkeypatch.setattr(api, "linear_header", lambda task, rng: known)
    client = one_sample(5.0, (3.0, 3.0), lr=0.1)  # both parts are replaced
    method = FedBABU(tune="header", tune_epochs=1, tune_lr=0.1)
    up, (first, second) = phases_of(method, client, {"weight": torch.zeros(1, 1)}, monkeypatch)
    assert_close(up, {"weight": torch.tensor([[0.1]])})
    assert header_of(first.after) == [1, -1, 0, 0]
    assert_close(second.after["model.header.weight"], torch.tensor([[1.0045017], [-1.0045017]]))
    assert_close(client.model.get_parameter("extractor.weight").item(), 0.1)


def test_the_server_weighs_all_clients_alike() -> None:
    sent = [Upload(0, 0, {"w": torch.tensor([1.0])}), Upload(1, 0, {"w": torch.tensor([3.0])})]
    assert_close(FedBABU().server_update({}, uploads_of(sent)), {"w": torch.tensor([2.0])})
    assert not FedBABU.weighs_by_examples


def test_training_leaves_the_header_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with momentum and weight decay."""
    _, (first, _) = trained(FedBABU(), 0, monkeypatch)
    assert first.changed() == {"extractor"}


def test_clients_with_other_data_and_rounds_have_the_same_header_before_they_tune(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, (first, _) = trained(FedBABU(), 0, monkeypatch)
    newcomer = rough_client(1)
    newcomer.round, newcomer.id = 3, 4
    down = another_part(newcomer, "extractor")
    _, (other, _) = phases_of(FedBABU(), newcomer, down, monkeypatch)
    assert header_of(other.before) == header_of(first.before)


@pytest.mark.parametrize(("tune", "parts"), [("header", {"header"}), ("all", None)])
def test_tuning_follows_the_upload(
    tune: str, parts: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedBABU(tune=tune)  # type: ignore[arg-type]
    up, (first, second) = trained(method, 0, monkeypatch)
    assert all(up[name].equal(first.after[f"model.extractor.{name}"]) for name in up)
    assert second.changed() == (parts or {"extractor", "header"})
    assert (second.arguments["epochs"], second.arguments["lr"]) == (5, 0.001)
    untuned, _ = trained(FedBABU(tune_epochs=0), 0, monkeypatch)
    assert up.keys() == untuned.keys()
    assert all(up[name].equal(untuned[name]) for name in up)


def test_without_tuning_epochs_the_common_header_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, (first, second) = trained(FedBABU(tune_epochs=0), 0, monkeypatch)
    assert second.changed() == set()
    assert header_of(second.after) == header_of(first.before)


def test_tuning_never_flows_back() -> None:
    """The next participation overwrites both parts."""
    tuned, fresh = rough_client(), rough_client()
    down = another_part(tuned, "extractor")
    FedBABU().client_update(tuned, down)
    tuned.round = fresh.round = 3
    ups = []
    for client in (tuned, fresh):
        torch.manual_seed(0)  # of dropout
        ups.append(FedBABU().client_update(client, down))
    assert all(ups[0][name].equal(ups[1][name]) for name in down)
    assert_close(network_state(tuned.model), network_state(fresh.model), rtol=0, atol=0)


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match=r"same extractor .* of clients 1, 3 differ"):
        quick("method.name=fedbabu")
    for setting in ("tune=extractor", "tune_epochs=-1", "tune_lr=0"):
        with pytest.raises(ConfigError, match=rf"method\.{setting.partition('=')[0]}"):
            quick("method.name=fedbabu", f"method.{setting}")
