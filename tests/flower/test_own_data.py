"""Clients with their own networks and data: what they provide, accept and send."""

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
from tests.flower.local import LocalFederation
from tests.support.tiny import quick

pytestmark = pytest.mark.usefixtures("impatient")


SENDS_NETWORK, KEEPS_NETWORK = "tests.support.families:Phases", "tests.support.families:Generates"
PRIVATE = ["data.name=private", "data.classes=a,b,c", "federation.clients=3", "model.rep_dim=8"]


class OwnNetwork(nn.Module):
    """A network of a client's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


Points = tuple[torch.Tensor, torch.Tensor]


def make_client(task: Task, node: NodeConfig) -> ClientSpec:
    """Return a client with points in three clusters."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(90) % task.num_classes
    centres = torch.eye(task.num_classes, 5) * 4
    x = centres[y] + torch.randn(90, 5, generator=rng)
    return ClientSpec(OwnNetwork(task.rep_dim), (x, y))


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd", "lg_fedavg", "standalone", "fedgkt"])
def test_clients_with_their_own_networks_and_data_train(method: str, tmp_path: Path) -> None:
    learns = ["local.lr=0.1", "local.batch_size=16", "federation.rounds=4"]
    experiment = quick(*PRIVATE, f"method.name={method}", *learns)
    federation = LocalFederation(tmp_path / "federation", experiment, [client_app(make_client)])
    run = federation.run()
    summary = run.summary()
    assert summary is not None
    assert (summary.accuracy or 0) > 0.9
    assert summary.paper_bytes_per_client_round is None
    assert not any("global" in key for key in (*summary, *run.records()[-1]))
    assert [c.extractor for c in run.clients()] == ["private"] * 3


def test_a_server_forgets_a_client_of_fedgh_plus(tmp_path: Path) -> None:
    settings = ["method.name=fedgh_plus", "method.feature_dim=16", "data.shape=[5]", "local.lr=0.1"]
    experiment = quick(*PRIVATE, *settings, "federation.rounds=4")
    run = LocalFederation(tmp_path / "federation", experiment, [client_app(make_client)]).run()
    assert (run.records()[-1].accuracy or 0) > 0.9
    before = part(run.committed()[1], "server.")
    assert forget(run.path, 1) == ForgetResult(1, 0, elsewhere=True)
    after = part(run.committed()[1], "server.")
    remaining = [Moments.read(part(before, f"client.{k}."), 3) for k in (0, 2)]
    assert after["sum.second"].equal((remaining[0] + remaining[1]).second)
    assert after["given"].tolist() == [True, False, True]


def test_a_client_sends_class_means_and_metrics_only(tmp_path: Path) -> None:
    messages_sent: list[bytes] = []
    own = client_app(make_client)
    spy = ClientApp()

    @spy.train()
    def train(message: Message, context: Context) -> Message:
        answer = own(message, context)
        messages_sent.extend(
            [bytes(answer.content["fedgh"]["json"]), answer.content["payload"]["safetensors"].data]  # type: ignore[arg-type,union-attr]
        )
        return answer

    LocalFederation(tmp_path / "federation", quick(*PRIVATE, "federation.rounds=1"), [spy]).run()
    for head, body in zip(messages_sent[::2], messages_sent[1::2], strict=True):
        assert set(json.loads(head)) == {
            "client_id",
            "round",
            "num_examples",
            "metrics",
            "seconds",
            "error",
        }
        assert json.loads(head)["num_examples"] == 0  # fedgh does not use it
        payload = wire.from_bytes(body)
        assert {name: tuple(tensor.shape) for name, tensor in payload.items()} == {
            "classes": (3,),
            "means": (3, 8),
        }


def test_initial_weights_are_drawn_from_a_stored_secret(tmp_path: Path) -> None:
    """This holds for the client's network and for the projection to `model.rep_dim`."""

    def wide(task: Task, node: NodeConfig) -> ClientSpec:
        return replace(make_client(task, node), network=OwnNetwork(task.rep_dim + 1))

    def weights(name: str) -> Payload:
        (tmp_path / name).mkdir(exist_ok=True)
        own = participant.own_blueprint(quick(*PRIVATE), 0, wide, {"client": 0}, tmp_path / name)
        return own.make(0).model.extractor.state_dict()

    one, again, other = weights("one"), weights("one"), weights("other")
    assert {"body", "projection"} == {name.split(".")[0] for name in one}
    assert all(tensor.equal(again[name]) for name, tensor in one.items())
    assert not any(tensor.equal(other[name]) for name, tensor in one.items())
    secret = tmp_path / "one" / "secret"
    assert (len(secret.read_bytes()), secret.stat().st_mode & 0o777) == (16, 0o600)


def test_the_accuracy_is_a_mean_over_batches_if_the_settings_say_so(tmp_path: Path) -> None:
    """As in a federation of the same clients in one process."""

    def large(task: Task, node: NodeConfig) -> ClientSpec:
        rng = torch.Generator().manual_seed(int(node["client"]))
        x, y = torch.randn(6000, 5, generator=rng), torch.arange(6000) % task.num_classes
        return ClientSpec(OwnNetwork(task.rep_dim), (x, y))

    settings = (*PRIVATE, "federation.rounds=1", "local.epochs=1", "published.batch_means=true")
    federation = LocalFederation(tmp_path / "federation", quick(*settings), [client_app(large)])
    accuracies = federation.run().records()[0].accuracies
    assert len(accuracies) == 3
    for accuracy in accuracies:  # 600 test samples: batches of 512 and 88
        assert accuracy is not None
        right = [a / 512 + b / 88 for a in range(513) for b in range(89)]
        assert min(abs(2 * accuracy - each) for each in right) < 1e-12
        assert abs(600 * accuracy - round(600 * accuracy)) > 1e-9, "not the share of all samples"


def test_the_server_gets_only_the_type_of_an_error_in_a_clients_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def careless(task: Task, node: NodeConfig) -> ClientSpec:
        if node["client"] == 1:
            raise FileNotFoundError("/data/patient-17.png")
        return make_client(task, node)

    federation = LocalFederation(tmp_path / "federation", quick(*PRIVATE), [client_app(careless)])
    (failure,) = federation.run().records()[0].failed
    assert failure.reason == "FileNotFoundError; see the client's own log"
    assert "patient-17" in caplog.text


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (lambda x, y: ClientSpec(nn.Flatten(0), (x, y)), r"instead of a vector per sample"),
        (lambda x, y: ClientSpec(OwnNetwork(8), (x[:, :3], y)), r"fails on inputs of shape \(3,\)"),
        (lambda x, y: ClientSpec(OwnNetwork(8), (x, y + 1)), r"labels from 1 to 3"),
        (lambda x, y: ClientSpec(OwnNetwork(8), (x[:2], y[:2])), r"needs at least 3"),
        (lambda x, y: ClientSpec(OwnNetwork(8), (x, y[:5])), r"90 inputs and 5 labels"),
    ],
)
def test_a_client_with_an_unsuitable_network_or_data_fails(
    spec: Callable[..., ClientSpec],
    problem: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(task: Task, node: NodeConfig) -> ClientSpec:
        x, y = cast(Points, make_client(task, node).data)
        return spec(x, y)

    federation = LocalFederation(tmp_path / "federation", quick(*PRIVATE), [client_app(make)])
    with pytest.raises(RunError, match=r"network or data do not fit this federation"):
        federation.run()
    assert re.search(problem, caplog.text)


def test_own_data_and_partitioned_data_cannot_be_mixed(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "federation", quick(), [client_app(make_client)])
    with pytest.raises(RunError, match="partitions a data set"):
        federation.run()
    federation = LocalFederation(tmp_path / "other", quick(*PRIVATE))
    with pytest.raises(RunError, match="name your app"):
        federation.run()


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        ({"method": {"name": "fedavg"}, "shape": [5]}, "would send this client's own network"),
        ({"method": {"name": SENDS_NETWORK}, "shape": [5]}, "would send this client's own network"),
        ({"method": {"name": "side_effect:X"}}, "method.name = 'side_effect:X' is not part"),
        (
            {"method": {"name": "fml", "shared": "side_effect:X"}},
            "side_effect:X' is not part",
        ),
        ({"method": {"name": "nowhere"}}, "no method 'nowhere'"),
    ],
)
def test_a_client_refuses_methods_and_networks_that_it_does_not_allow(
    overrides: dict[str, Any], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's settings can neither replace its network nor import a module of its machine."""
    experiment = quick(*PRIVATE, "federation.rounds=1")
    federation = LocalFederation(
        tmp_path / "federation", experiment, [client_app(make_client)], {"allow": SENDS_NETWORK}
    )
    (tmp_path / "side_effect.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    pack_request = messages.pack_request

    def other_settings(request: messages.Request, down: bytes | None) -> RecordDict:
        settings = {name: dict(section) for name, section in request.settings.items()}
        settings["method"] = overrides.get("method", settings["method"])
        settings["data"].update({"shape": overrides["shape"]} if "shape" in overrides else {})
        settings["model"]["extractors"] = [
            "side_effect:X"
        ]  # ignored: the client has its own network
        return pack_request(replace(request, settings=settings), down)

    monkeypatch.setattr(messages, "pack_request", other_settings)
    with pytest.raises(RunError, match=refusal):
        federation.run()
    assert federation.states() == {}


def test_an_allowed_method_outside_fedgh_is_accepted_if_it_does_not_send_the_network(
    tmp_path: Path,
) -> None:
    """It must be allowed by name, and its declaration must show that the network is not sent."""
    experiment = quick(*PRIVATE, "federation.rounds=1", f"method.name={KEEPS_NETWORK}")
    run = LocalFederation(
        tmp_path / "federation", experiment, [client_app(make_client)], {"allow": KEEPS_NETWORK}
    ).run()
    assert run.records()[0].failed == []
    only_fedgh = client_app(make_client, methods=["fedgh"])
    federation = LocalFederation(
        tmp_path / "other", experiment, [only_fedgh], {"allow": KEEPS_NETWORK}
    )
    with pytest.raises(RunError, match=r"does not take part in tests\.support\.families:Generates"):
        federation.run()


def test_a_client_with_changed_data_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Changed data would be split differently, so test samples would be trained on."""
    more = 0

    def growing(task: Task, node: NodeConfig) -> ClientSpec:
        nonlocal more
        spec = make_client(task, node)
        if node["client"] != 1:
            return spec
        more += 1
        x, y = cast(Points, spec.data)
        return replace(spec, data=(x[: 60 + more], y[: 60 + more]))

    run = LocalFederation(tmp_path / "federation", quick(*PRIVATE), [client_app(growing)]).run()
    assert [[f.client for f in record.failed] for record in run.records()] == [[], [1], [1]]
    assert "the data are not those of the first round" in caplog.text


def test_the_app_named_in_node_conf_is_used(tmp_path: Path) -> None:
    named = {"app": "tests.flower.test_own_data:named"}
    run = LocalFederation(tmp_path / "federation", quick(*PRIVATE), settings=named).run()
    assert run.records()[-1].failed == []
    wrong = {"app": "tests.flower.nowhere:app"}
    with pytest.raises(RunError, match="app cannot be used"):
        LocalFederation(tmp_path / "other", quick(*PRIVATE), settings=wrong).run()


named = client_app(make_client)


def test_settings_that_need_the_clients_private_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data are on the clients' machines"):
        loop.run(quick(*PRIVATE), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"data\.classes"):
        quick("data.name=private")
    with pytest.raises(ConfigError, match=r"run\.global_accuracy = 'every' needs the data of all"):
        quick(*PRIVATE, "run.global_accuracy=every")
    with pytest.raises(
        ConfigError, match=r"data\.samples applies to data that are partitioned here"
    ):
        quick(*PRIVATE, "data.samples=9")
    for method in ("fedavg", "fml"):
        with pytest.raises(ConfigError, match=r"data\.shape"):
            quick(*PRIVATE, f"method.name={method}")
