"""Public data on Flower: every participant has its own copy, which must be the server's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgh.core.types import Task
from fedgh.errors import ConfigError, RunError
from fedgh.flower import ClientSpec, NodeConfig, client_app
from fedgh.training import loop
from tests.flower.local import NETWORKS, House
from tests.support.public import CHORUS, DISTANT
from tests.support.tiny import numbers, quick, states

pytestmark = pytest.mark.usefixtures("impatient")

TWO = ["federation.clients=2", "federation.rounds=2", "data.partition=iid"]
PRIVATE = [*TWO, "data.name=private", "data.classes=a,b,c", "model.rep_dim=8"]


def bring(task: Task, node: NodeConfig) -> ClientSpec:
    """Points near three corners."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(60) % task.num_classes
    x = 4 * torch.eye(task.num_classes, 5)[y] + torch.randn(60, 5, generator=rng)
    return ClientSpec(nn.Linear(5, task.rep_dim), (x, y))


def points(path: Path, width: int = 5, seed: int = 9) -> Path:
    """A file with points that are not those of a participant."""
    x = np.random.default_rng(seed).normal(size=(30, width)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(30) % 3)
    return path


def house(tmp_path: Path, theirs: Path, method: str = CHORUS, **server: Any) -> House:
    """A server with points of its own disk, and participants with those of theirs."""
    path = points(tmp_path / "server.npz", **server)
    public = ["public.name=npz", f"public.path={path}", "public.samples=20"]
    experiment = quick(*PRIVATE, *public, f"method.name={method}")
    node = {"allow": method, "public-path": str(theirs)}
    return House(tmp_path / "house", experiment, [client_app(bring, methods=[method])], node)


def test_participants_with_the_same_public_data_learn_together(tmp_path: Path) -> None:
    run = house(tmp_path, points(tmp_path / "theirs.npz")).run()
    assert [record.failed for record in run.records()] == [[], []]
    assert run.summary().public_bytes_per_client == 20 * 5 * 4


def test_other_public_data_than_the_servers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"the public data here \(npz\) are not those of the server"):
        house(tmp_path, points(tmp_path / "theirs.npz", seed=10)).run()


def test_public_data_that_are_not_here_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError, match=r"public data \(npz\) cannot be used here; the") as said:
        house(tmp_path, tmp_path / "nowhere.npz").run()
    assert "nowhere" not in str(said.value)
    assert "nowhere.npz does not exist" in caplog.text


def test_public_data_must_fit_the_participants_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError, match="what it brings does not fit; the participant's own log"):
        house(tmp_path, points(tmp_path / "theirs.npz", width=4), width=4).run()
    assert "inputs are (4,) of float32, those of the data (5,) of float32" in caplog.text


def test_private_samples_must_not_be_public(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = quick(*PRIVATE)
    secret = bring(experiment.task, {"client": 1}).source(experiment.source.class_names)
    for name in ("server.npz", "theirs.npz"):
        np.savez(tmp_path / name, x=secret.x.numpy(), y=secret.y.numpy())
    public = ["public.name=npz", f"public.path={tmp_path / 'server.npz'}", "public.samples=20"]
    prepared = quick(*PRIVATE, *public, f"method.name={CHORUS}")
    node = {"allow": CHORUS, "public-path": str(tmp_path / "theirs.npz")}
    app = client_app(bring, methods=[CHORUS])
    run = House(tmp_path / "house", prepared, [app], node).run()
    assert [[f.client for f in record.failed] for record in run.records()] == [[1], [1]]
    assert "20 of its 20 samples are private samples of clients as well" in caplog.text


def test_public_data_of_the_server_alone_are_nowhere_else(tmp_path: Path) -> None:
    run = house(tmp_path, tmp_path / "nowhere.npz", DISTANT).run()
    assert run.records()[-1].failed == []
    assert run.summary().public_bytes_per_client is None


def test_what_is_not_here_cannot_be_held_out() -> None:
    with pytest.raises(ConfigError, match=r"data.name = 'private': each client has its own"):
        quick(*PRIVATE, "public.name=held-out", f"method.name={CHORUS}")


@pytest.mark.parametrize("method", [CHORUS, DISTANT])
def test_dealt_data_with_some_held_out_give_the_same_bits(method: str, tmp_path: Path) -> None:
    held_out = ["public.name=held-out", "public.samples=30"]
    experiment = quick(*TWO, *held_out, f"method.name={method}")
    straight = loop.run(experiment, tmp_path / "serial")
    there = House(tmp_path / "house", experiment, settings={"allow": f"{NETWORKS},{method}"})
    run = there.run()
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**there.states(), "server.safetensors": server} == states(straight)
