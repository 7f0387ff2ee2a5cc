"""FedAlt: the personal part first, then the shared one; either part may be personal."""

import pytest
import torch
from torch.testing import assert_close

from fedgh.core.average import network_state
from fedgh.core.types import Payload, Task, Upload
from fedgh.errors import MethodError
from fedgh.methods import api
from fedgh.methods.fedalt import FedAlt
from fedgh.testing import check_method
from tests.support.phases import another_part, one_sample, phases_of, rough_client
from tests.support.rounds import uploads_of
from tests.support.tiny import quick

HEADER, EXTRACTOR = FedAlt(personal="header"), FedAlt(personal="extractor")
PERSONAL = pytest.mark.parametrize("method", [HEADER, EXTRACTOR], ids=["header", "extractor"])


def the_other(method: FedAlt) -> str:
    return "header" if method.personal == "extractor" else "extractor"


def test_with_a_personal_extractor_the_header_learns_under_the_new_extractor() -> None:
    client = one_sample(1.0, (0.0, 0.0), lr=1.0)
    down = {"weight": torch.tensor([[0.5], [-0.5]]), "bias": torch.zeros(2)}
    up = EXTRACTOR.client_update(client, down)
    assert_close(client.model.get_parameter("extractor.weight").item(), 1.2689414)
    assert_close(up["weight"], torch.tensor([[0.7784546], [-0.7784546]]))


def test_with_a_personal_header_the_extractor_learns_under_the_new_header() -> None:
    client = one_sample(1.0, (0.0, 0.0), lr=1.0)
    up = HEADER.client_update(client, {"weight": torch.ones(1, 1)})
    assert_close(client.model.header.weight.detach(), torch.tensor([[0.5], [-0.5]]))
    assert_close(up, {"weight": torch.tensor([[1.2689414]])})


@PERSONAL
def test_the_server_weighs_by_samples(method: FedAlt) -> None:
    sent = [Upload(0, 1, {"w": torch.tensor([1.0])}), Upload(1, 3, {"w": torch.tensor([3.0])})]
    assert_close(method.server_update({}, uploads_of(sent)), {"w": torch.tensor([2.5])})


@PERSONAL
def test_each_phase_fixes_the_other_part_to_the_bit(
    method: FedAlt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with momentum and weight decay; a new client starts with its own personal part."""
    newcomer = rough_client()
    newcomer.round = 3
    shared = the_other(method)
    own = network_state(newcomer.model.get_submodule(method.personal))
    down = another_part(newcomer, shared)
    up, (first, second) = phases_of(method, newcomer, down, monkeypatch)
    assert all(first.before[f"model.{shared}.{name}"].equal(down[name]) for name in down)
    assert all(first.before[f"model.{method.personal}.{name}"].equal(own[name]) for name in own)
    assert (first.changed(), second.changed()) == ({method.personal}, {shared})
    assert up.keys() == down.keys()
    assert all(up[name].equal(second.after[f"model.{shared}.{name}"]) for name in up)
    assert first.arguments["stream"] == "personal"
    assert {"personal_loss", "train_loss"} <= newcomer.metrics.keys()


def test_the_setting_decides_what_crosses() -> None:
    assert FedAlt() == EXTRACTOR
    assert (EXTRACTOR.up, EXTRACTOR.down) == (api.HEADER, api.HEADER)
    assert HEADER.up == HEADER.down == api.Network("own", "extractor")
    assert (EXTRACTOR.own_network_crosses, HEADER.own_network_crosses) == (False, True)
    assert (EXTRACTOR.same_part, HEADER.same_part) == ("none", "extractor")
    assert (EXTRACTOR.accepts_newcomers, HEADER.accepts_newcomers) == (True, False)


def test_the_first_header_needs_no_network_of_a_client() -> None:
    task = Task(4, 3, num_clients=5, rounds=10, seed=0)
    server: Payload = EXTRACTOR.init_server(task, [], torch.Generator())
    assert {name: tuple(t.shape) for name, t in server.items()} == {"weight": (4, 3), "bias": (4,)}


def test_only_a_shared_extractor_needs_one_architecture() -> None:
    quick("method.name=fedalt")
    with pytest.raises(MethodError, match=r"same extractor .* of clients 1, 3 differ"):
        quick("method.name=fedalt", "method.personal=header")


def test_with_a_personal_header_the_contract_holds() -> None:
    check_method(HEADER, ["model.extractors=mlp"])
