"""Participants with networks and data of their own: what they bring, agree to and let out."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedgh.core import wire
from fedgh.core.moments import Moments
from fedgh.core.types import Payload, Task, part
from fedgh.errors import ConfigError, RunError
from fedgh.flower import (
    ClientSpec,
    NodeConfig,
    client_app,
    messages,
    participant,
)
from fedgh.trained.forget import ForgetResult, forget
from fedgh.training import loop
from tests.flower.local import House
from tests.support.tiny import quick

pytestmark = pytest.mark.usefixtures("impatient")


TRAVELS, STAYS = "tests.support.families:Phases", "tests.support.families:Generates"
PRIVATE = ["data.name=private", "data.classes=a,b,c", "federation.clients=3", "model.rep_dim=8"]


class Secretive(nn.Module):
    """A network that nobody else has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


Points = tuple[torch.Tensor, torch.Tensor]


def bring(task: Task, node: NodeConfig) -> ClientSpec:
    """Three clouds of points."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(90) % task.num_classes
    centres = torch.eye(task.num_classes, 5) * 4
    x = centres[y] + torch.randn(90, 5, generator=rng)
    return ClientSpec(Secretive(task.rep_dim), (x, y))


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd", "lg_fedavg", "standalone", "fedgkt"])
def test_participants_bring_their_own_networks_and_data(method: str, tmp_path: Path) -> None:
    experiment = quick(*PRIVATE, f"method.name={method}", "local.lr=0.1", "federation.rounds=4")
    house = House(tmp_path / "house", experiment, [client_app(bring)])
    run = house.run()
    summary = run.summary()
    assert summary is not None
    assert (summary.accuracy or 0) > 0.9
    assert summary.paper_bytes_per_client_round is None
    assert not any("global" in key for key in (*summary, *run.records()[-1]))
    assert [c.extractor for c in run.clients()] == ["private"] * 3


def test_a_server_forgets_a_participant_of_fedgh_plus(tmp_path: Path) -> None:
    words = ["method.name=fedgh_plus", "method.feature_dim=16", "data.shape=[5]", "local.lr=0.1"]
    experiment = quick(*PRIVATE, *words, "federation.rounds=4")
    run = House(tmp_path / "house", experiment, [client_app(bring)]).run()
    assert (run.records()[-1].accuracy or 0) > 0.9
    before = part(run.committed()[1], "server.")
    assert forget(run.path, 1) == ForgetResult(1, 0, elsewhere=True)
    after = part(run.committed()[1], "server.")
    left = [Moments.read(part(before, f"client.{k}."), 3) for k in (0, 2)]
    assert after["sum.second"].equal((left[0] + left[1]).second)
    assert after["given"].tolist() == [True, False, True]


def test_nothing_of_a_network_or_of_data_leaves_the_participant(tmp_path: Path) -> None:
    seen: list[bytes] = []
    own = client_app(bring)
    spy = ClientApp()

    @spy.train()
    def train(message: Message, context: Context) -> Message:
        answer = own(message, context)
        seen.extend(
            [bytes(answer.content["fedgh"]["json"]), answer.content["payload"]["safetensors"].data]  # type: ignore[arg-type,union-attr]
        )
        return answer

    House(tmp_path / "house", quick(*PRIVATE, "federation.rounds=1"), [spy]).run()
    for head, body in zip(seen[::2], seen[1::2], strict=True):
        assert set(json.loads(head)) == {
            "client_id",
            "round",
            "num_examples",
            "metrics",
            "seconds",
            "error",
        }
        assert json.loads(head)["num_examples"] == 0  # fedgh does not ask for it
        payload = wire.from_bytes(body)
        assert {name: tuple(tensor.shape) for name, tensor in payload.items()} == {
            "classes": (3,),
            "means": (3, 8),
        }


def test_first_weights_are_drawn_from_a_secret_and_stay_the_same(tmp_path: Path) -> None:
    """The network's own, and those of the projection to the width that all agree on."""

    def wide(task: Task, node: NodeConfig) -> ClientSpec:
        return replace(bring(task, node), network=Secretive(task.rep_dim + 1))

    def weights(home: str) -> Payload:
        (tmp_path / home).mkdir(exist_ok=True)
        own = participant.own_blueprint(quick(*PRIVATE), 0, wide, {"client": 0}, tmp_path / home)
        return own.make(0).model.extractor.state_dict()

    one, again, other = weights("one"), weights("one"), weights("other")
    assert {"body", "projection"} == {name.split(".")[0] for name in one}
    assert all(tensor.equal(again[name]) for name, tensor in one.items())
    assert not any(tensor.equal(other[name]) for name, tensor in one.items())
    secret = tmp_path / "one" / "secret"
    assert (len(secret.read_bytes()), secret.stat().st_mode & 0o777) == (16, 0o600)


def test_an_error_in_a_participants_code_tells_nothing_of_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def careless(task: Task, node: NodeConfig) -> ClientSpec:
        if node["client"] == 1:
            raise FileNotFoundError("/data/patient-17.png")
        return bring(task, node)

    house = House(tmp_path / "house", quick(*PRIVATE), [client_app(careless)])
    (failure,) = house.run().records()[0].failed
    assert failure.reason == "FileNotFoundError; the participant's own log says more"
    assert "patient-17" in caplog.text


@pytest.mark.parametrize(
    ("brought", "problem"),
    [
        (lambda x, y: ClientSpec(nn.Flatten(0), (x, y)), r"instead of a vector per sample"),
        (lambda x, y: ClientSpec(Secretive(8), (x[:, :3], y)), r"fails on inputs of shape \(3,\)"),
        (lambda x, y: ClientSpec(Secretive(8), (x, y + 1)), r"labels from 1 to 3"),
        (lambda x, y: ClientSpec(Secretive(8), (x[:2], y[:2])), r"needs at least 3"),
        (lambda x, y: ClientSpec(Secretive(8), (x, y[:5])), r"90 inputs and 5 labels"),
    ],
)
def test_what_a_participant_brings_is_checked(
    brought: Callable[..., ClientSpec],
    problem: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(task: Task, node: NodeConfig) -> ClientSpec:
        x, y = cast(Points, bring(task, node).data)
        return brought(x, y)

    house = House(tmp_path / "house", quick(*PRIVATE), [client_app(make)])
    with pytest.raises(RunError, match=r"what it brings does not fit; the participant's own log"):
        house.run()
    assert re.search(problem, caplog.text)


def test_data_of_ones_own_do_not_go_with_a_federation_that_deals(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick(), [client_app(bring)])
    with pytest.raises(RunError, match="deals out its data"):
        house.run()
    house = House(tmp_path / "other", quick(*PRIVATE))
    with pytest.raises(RunError, match="name your app"):
        house.run()


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        ({"method": {"name": "fedavg"}, "shape": [5]}, "own network would travel"),
        ({"method": {"name": TRAVELS}, "shape": [5]}, "own network would travel"),
        ({"method": {"name": "side_effect:X"}}, "method.name = 'side_effect:X' is not part"),
        (
            {"method": {"name": "fml", "shared": "side_effect:X"}},
            "side_effect:X' is not part",
        ),
        ({"method": {"name": "nowhere"}}, "no method 'nowhere'"),
    ],
)
def test_a_participant_does_what_it_agreed_to_and_no_more(
    overrides: dict[str, Any], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server asks: no other network, no module of the participant's machine."""
    experiment = quick(*PRIVATE, "federation.rounds=1")
    house = House(tmp_path / "house", experiment, [client_app(bring)], {"allow": TRAVELS})
    (tmp_path / "side_effect.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = messages.request

    def other_settings(request: messages.Request, down: bytes | None) -> RecordDict:
        settings = {name: dict(section) for name, section in request.settings.items()}
        settings["method"] = overrides.get("method", settings["method"])
        settings["data"].update({"shape": overrides["shape"]} if "shape" in overrides else {})
        settings["model"]["extractors"] = ["side_effect:X"]  # is never looked at: it brings its own
        return asked(replace(request, settings=settings), down)

    monkeypatch.setattr(messages, "request", other_settings)
    with pytest.raises(RunError, match=refusal):
        house.run()
    assert house.states() == {}


def test_a_plug_in_is_welcome_by_what_it_declares(tmp_path: Path) -> None:
    """It is allowed by name, and the participant's own network stays at home."""
    experiment = quick(*PRIVATE, "federation.rounds=1", f"method.name={STAYS}")
    run = House(tmp_path / "house", experiment, [client_app(bring)], {"allow": STAYS}).run()
    assert run.records()[0].failed == []
    only_fedgh = client_app(bring, methods=["fedgh"])
    house = House(tmp_path / "other", experiment, [only_fedgh], {"allow": STAYS})
    with pytest.raises(RunError, match=r"does not take part in tests\.support\.families:Generates"):
        house.run()


def test_other_data_than_before_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was kept for testing would be trained on."""
    more = 0

    def growing(task: Task, node: NodeConfig) -> ClientSpec:
        nonlocal more
        brought = bring(task, node)
        if node["client"] != 1:
            return brought
        more += 1
        x, y = cast(Points, brought.data)
        return replace(brought, data=(x[: 60 + more], y[: 60 + more]))

    run = House(tmp_path / "house", quick(*PRIVATE), [client_app(growing)]).run()
    assert [[f.client for f in record.failed] for record in run.records()] == [[], [1], [1]]
    assert "the data are not those of the first round" in caplog.text


def test_the_app_that_the_node_config_names_is_used(tmp_path: Path) -> None:
    named = {"app": "tests.flower.test_own_data:named"}
    run = House(tmp_path / "house", quick(*PRIVATE), settings=named).run()
    assert run.records()[-1].failed == []
    wrong = {"app": "tests.flower.nowhere:app"}
    with pytest.raises(RunError, match="app cannot be used"):
        House(tmp_path / "other", quick(*PRIVATE), settings=wrong).run()


named = client_app(bring)


def test_private_data_are_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data are with the participants"):
        loop.run(quick(*PRIVATE), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"data\.classes"):
        quick("data.name=private")
    with pytest.raises(ConfigError, match=r"run\.global_accuracy = 'every' needs the data of all"):
        quick(*PRIVATE, "run.global_accuracy=every")
    with pytest.raises(ConfigError, match=r"data\.samples is about data that are dealt here"):
        quick(*PRIVATE, "data.samples=9")
    for method in ("fedavg", "fml"):
        with pytest.raises(ConfigError, match=r"data\.shape"):
            quick(*PRIVATE, f"method.name={method}")
