"""Requests of a server to a client: names in them are not followed, and limits apply.

The tests enumerate all fields with text, as in `test_names`.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp
from torch import nn

from fedgh import config
from fedgh.core.types import Job, Reply, Task
from fedgh.flower import ClientSpec, NodeConfig, client, client_app, engine, messages
from fedgh.flower.bound import Bound
from fedgh.flower.engine import Flower
from fedgh.flower.server import shared_settings
from fedgh.training import experiment
from fedgh.training.experiment import Experiment
from tests.flower.local import FIRST_NODE, LocalFederation
from tests.support.public import CHORUS
from tests.trust.commands import SMALL
from tests.trust.names import FIRST_OF_EACH_KIND, evil_events
from tests.trust.watch import RECORDER

Ask = Callable[..., Reply]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "MIN_FIRST_ROUND", 0.0)


def make_client(task: Task, _: NodeConfig) -> ClientSpec:
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(30, 5, generator=rng), torch.arange(30) % task.num_classes
    return ClientSpec(nn.Linear(5, task.rep_dim), data)


PRIVATE = ["data.name=private", "data.classes=no,yes", "data.shape=[5]", "model.rep_dim=4"]
KINDS: dict[str, tuple[ClientApp, list[str]]] = {
    "partitioned data": (client.app, SMALL),
    "own data": (client_app(make_client), [*SMALL, *PRIVATE]),
}


@pytest.fixture(params=KINDS)
def ask(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A function that sends a client the request of a server with changed settings."""
    app, overrides = KINDS[request.param]
    (tmp_path / "elsewhere_evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def send(
        method: str = "fedgh", section: str = "", key: str = "", value: Any = None, **changes: Any
    ) -> Reply:
        shared = ["method.shared=mlp"] if method in ("fml", "fedkd") else []
        prepared = experiment.prepare(
            config.load("demo", [*overrides, f"method.name={method}", *shared])
        )
        settings = shared_settings(prepared)
        if section:
            settings.setdefault(section, {})[key] = value
        federation = LocalFederation(tmp_path / "federation", prepared, [app])
        return send_request(federation, prepared, settings=settings, **changes)

    return send


def send_request(federation: LocalFederation, prepared: Experiment, **changes: Any) -> Reply:
    """Send client 0 the first request of a run, with some fields changed."""
    server = Flower(
        federation.grid,
        {},
        experiment="e",
        start=1,
        settings=shared_settings(prepared),
        fingerprint=None if prepared.private else prepared.fingerprint(),
        deadline=60.0,
        trained={},
        settled=0,
    )
    job = Job(0, 1, None, evaluate=True)
    message = server.message(job, FIRST_NODE, 60.0)
    question, down = messages.read_request(message.content)
    message.content = messages.pack_request(replace(question, **changes), down)
    (name,) = federation.grid.push_messages([message])
    (answer,) = federation.grid.pull_messages([name])
    return messages.read_answer(answer.content, job)


@pytest.mark.parametrize("method", ["fedgh", "fml", "fedkd"])
def test_a_client_answers_an_honest_request(ask: Ask, method: str) -> None:
    assert ask(method).error is None


@pytest.mark.parametrize(("method", "section", "key", "value"), FIRST_OF_EACH_KIND)
def test_a_client_follows_no_name_in_a_servers_settings(
    ask: Ask, method: str, section: str, key: str, value: str
) -> None:
    with RECORDER.recording() as events:
        reply = ask(method, section, key, [value] if key in ("extractors", "callbacks") else value)
    assert evil_events(events) == []
    replaced = section in ("data", "public") or (key == "extractors" and reply.error is None)
    refusal = "is not part of fedgh, and this client does not allow it"
    assert replaced or refusal in str(reply.error)


@pytest.fixture
def no_official_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No official data set is on this machine, and a download fails the test."""
    monkeypatch.setenv("FEDGH_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("pooch.os_cache", lambda _: tmp_path / "nothing")
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("a download"))


@pytest.mark.usefixtures("no_official_data")
def test_a_client_downloads_no_data_at_a_servers_request(ask: Ask) -> None:
    with RECORDER.recording() as events:
        reply = ask("fedgh", "data", "name", "cifar10")
    assert [what for what in events if what.startswith("socket")] == []
    assert "downloads nothing at" in str(reply.error) or "partitions a data set" in str(reply.error)


PUBLIC = {"name": "npz", "samples": 20}


def federation_with_public_data(tmp_path: Path, kind: str) -> tuple[LocalFederation, Experiment]:
    """Return a federation whose clients need public data, and its experiment."""
    rng = np.random.default_rng(0)
    image = (1, 32, 32) if kind == "partitioned data" else (5,)
    x = rng.integers(0, 256, (30, *image)).astype(np.uint8)
    np.savez(tmp_path / "public.npz", x=x, y=np.arange(30) % 2)
    app, overrides = KINDS[kind]
    app = app if kind == "partitioned data" else client_app(make_client, methods=[CHORUS])
    public = [f"public.path={tmp_path / 'public.npz'}", "public.name=npz", "public.samples=20"]
    settings = [*overrides, f"method.name={CHORUS}", *public]
    prepared = experiment.prepare(config.load("demo", settings))
    node = {"allow": CHORUS, "public-path": str(tmp_path / "public.npz")}
    return LocalFederation(tmp_path / "federation", prepared, [app], node), prepared


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_loads_public_data_from_its_own_path(kind: str, tmp_path: Path) -> None:
    federation, prepared = federation_with_public_data(tmp_path, kind)
    settings = shared_settings(prepared)
    assert settings["public"] == PUBLIC
    assert prepared.public is not None
    digest = prepared.public.digest.hex()
    settings["public"] |= {"path": "/elsewhere_evil/data.npz", "dir": "/elsewhere_evil"}
    with RECORDER.recording() as events:
        reply = send_request(federation, prepared, settings=settings, public=digest)
    assert reply.error is None
    assert evil_events(events) == []
    assert any("public.npz" in what for what in events)


@pytest.mark.usefixtures("no_official_data")
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_downloads_no_public_data_at_a_servers_request(kind: str, tmp_path: Path) -> None:
    federation, prepared = federation_with_public_data(tmp_path, kind)
    settings = {**shared_settings(prepared), "public": {**PUBLIC, "name": "cifar100"}}
    reply = send_request(federation, prepared, settings=settings)
    assert str(reply.error).startswith("cifar100 is not on this client's machine, and a client")


LIMITS = [
    ("federation", "clients", 10**8, "max-clients=1000000"),
    ("data", "classes", [f"c{k}" for k in range(20_000)], "max-classes=10000"),
    ("model", "rep_dim", 10**9, "max-rep-dim=4096"),
    ("model", "extractors", ["mlp"] * 1000, "max-networks=16"),
    ("data", "image_size", 10**6, "max-image-size=1024"),
    ("data", "shape", [10**5, 10**5], "max-image-size=1024"),
    ("local", "epochs", 10**9, "max-epochs=1000"),
    ("method", "feature_dim", 10**6, "max-feature-dim=4096"),
]


@pytest.mark.parametrize(("section", "key", "value", "limit"), LIMITS)
def test_a_client_refuses_settings_beyond_its_limits(
    ask: Ask, section: str, key: str, value: Any, limit: str
) -> None:
    reply = ask("fedgh_plus" if section == "method" else "fedgh", section, key, value)
    if key == "extractors" and reply.error is None:
        return  # the client has its own network
    assert str(reply.error).startswith(f"{section}.{key} asks for ")
    assert str(reply.error).endswith(f", more than {limit}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_limits_the_size_of_public_data(kind: str, tmp_path: Path) -> None:
    federation, prepared = federation_with_public_data(tmp_path, kind)
    settings = {**shared_settings(prepared), "public": {**PUBLIC, "samples": 10**9}}
    reply = send_request(federation, prepared, settings=settings)
    assert str(reply.error) == "public.samples asks for 1000000000, more than max-public=100000"


def test_every_limit_of_a_client_is_tested() -> None:
    tried = {limit.partition("=")[0] for *_, limit in LIMITS}
    tested_elsewhere = {
        "max-public",
        "max-epsilon",
        "max-seconds",
        "max-experiments",
        "max-rounds-kept",
    }
    known = {name.replace("_", "-") for name in Bound.model_fields if name.startswith("max_")}
    assert tried | tested_elsewhere == known


def test_a_client_limits_the_deadline(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    durations: list[float] = []
    monkeypatch.setattr(
        "faulthandler.dump_traceback_later", lambda seconds, **_: durations.append(seconds)
    )
    assert ask(deadline=1e300).error is None
    assert max(durations) == 86_400


@pytest.mark.parametrize("name", ["privacy.json", "experiments", "privacy.lock", "a", "A" * 80])
def test_the_name_of_an_experiment_is_not_used_as_a_file_name(
    ask: Ask, name: str, tmp_path: Path
) -> None:
    assert ask(experiment=name).error is None
    (states,) = (tmp_path / "federation" / "states").iterdir()
    assert states.name == "experiments"
    (folder,) = states.iterdir()
    assert folder.name != name
    assert (folder / "client-0" / "name.txt").read_text() == f"{name}\n"


def test_a_client_limits_the_number_of_stored_experiments(tmp_path: Path) -> None:
    prepared = experiment.prepare(config.load("demo", SMALL))
    federation = LocalFederation(
        tmp_path / "federation", prepared, settings={"max-experiments": "2"}
    )

    def begin(name: str) -> Reply:
        return send_request(federation, prepared, experiment=name)

    assert [begin(name).error for name in ("a", "b", "a")] == [None] * 3
    assert "(max-experiments)" in str(begin("c").error)
    assert begin("b").error is None


def test_an_experiment_named_like_the_ledger_does_not_change_it(tmp_path: Path) -> None:
    overrides = [*SMALL, "privacy.protects=client", "privacy.epsilon=4"]
    prepared = experiment.prepare(config.load("demo", overrides))
    federation = LocalFederation(tmp_path / "federation", prepared, settings={"max-epsilon": "100"})
    for name in ("privacy.json", "privacy.lock"):
        assert send_request(federation, prepared, experiment=name).error is None
    run = federation.run()
    assert run.records()[0].failed == []
    assert json.loads((federation.path / "states" / "privacy.json").read_text())["releases"] >= 1
