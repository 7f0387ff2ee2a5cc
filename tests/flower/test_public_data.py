"""Public data on Flower: every client has its own copy, which must equal the server's."""

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
from tests.flower.local import NETWORKS, LocalFederation
from tests.support.public import CHORUS, DISTANT
from tests.support.states import states
from tests.support.tiny import numbers, quick

pytestmark = pytest.mark.usefixtures("impatient")

TWO = ["federation.clients=2", "federation.rounds=2", "data.partition=iid"]
PRIVATE = [*TWO, "data.name=private", "data.classes=a,b,c", "model.rep_dim=8"]


def make_client(task: Task, node: NodeConfig) -> ClientSpec:
    """Return a client with points near three corners."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(60) % task.num_classes
    x = 4 * torch.eye(task.num_classes, 5)[y] + torch.randn(60, 5, generator=rng)
    return ClientSpec(nn.Linear(5, task.rep_dim), (x, y))


def points(path: Path, width: int = 5, seed: int = 9) -> Path:
    """Write a file with points that no client has."""
    x = np.random.default_rng(seed).normal(size=(30, width)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(30) % 3)
    return path


def local_federation(
    tmp_path: Path, client_file: Path, method: str = CHORUS, **server: Any
) -> LocalFederation:
    """Return a federation whose server and clients have different files of public data."""
    path = points(tmp_path / "server.npz", **server)
    public = ["public.name=npz", f"public.path={path}", "public.samples=20"]
    experiment = quick(*PRIVATE, *public, f"method.name={method}")
    node = {"allow": method, "public-path": str(client_file)}
    return LocalFederation(
        tmp_path / "federation", experiment, [client_app(make_client, methods=[method])], node
    )


def test_clients_with_the_servers_public_data_train(tmp_path: Path) -> None:
    run = local_federation(tmp_path, points(tmp_path / "clients.npz")).run()
    assert [record.failed for record in run.records()] == [[], []]
    assert run.summary().public_bytes_per_client == 20 * 5 * 4


def test_clients_with_other_public_data_than_the_server_fail(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"public data \(npz\) are not those of the server"):
        local_federation(tmp_path, points(tmp_path / "clients.npz", seed=10)).run()


def test_clients_without_the_public_data_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError, match=r"cannot use the public data \(npz\); see") as error:
        local_federation(tmp_path, tmp_path / "nowhere.npz").run()
    assert "nowhere" not in str(error.value)
    assert "nowhere.npz does not exist" in caplog.text


def test_public_data_with_another_input_shape_than_the_clients_data_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError, match="network or data do not fit this federation"):
        local_federation(tmp_path, points(tmp_path / "clients.npz", width=4), width=4).run()
    assert "inputs are (4,) of float32, those of the data (5,) of float32" in caplog.text


def test_a_client_whose_samples_are_public_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = quick(*PRIVATE)
    secret = make_client(experiment.task, {"client": 1}).source(experiment.source.class_names)
    for name in ("server.npz", "clients.npz"):
        np.savez(tmp_path / name, x=secret.x.numpy(), y=secret.y.numpy())
    public = ["public.name=npz", f"public.path={tmp_path / 'server.npz'}", "public.samples=20"]
    prepared = quick(*PRIVATE, *public, f"method.name={CHORUS}")
    node = {"allow": CHORUS, "public-path": str(tmp_path / "clients.npz")}
    app = client_app(make_client, methods=[CHORUS])
    run = LocalFederation(tmp_path / "federation", prepared, [app], node).run()
    assert [[f.client for f in record.failed] for record in run.records()] == [[1], [1]]
    assert "20 of its 20 samples are private samples of clients as well" in caplog.text


def test_public_data_of_the_server_only_are_not_needed_by_clients(tmp_path: Path) -> None:
    run = local_federation(tmp_path, tmp_path / "nowhere.npz", DISTANT).run()
    assert run.records()[-1].failed == []
    assert run.summary().public_bytes_per_client is None


def test_held_out_public_data_are_refused_if_clients_have_their_own_data() -> None:
    with pytest.raises(ConfigError, match=r"data.name = 'private': each client has its own"):
        quick(*PRIVATE, "public.name=held-out", f"method.name={CHORUS}")


@pytest.mark.parametrize("method", [CHORUS, DISTANT])
def test_held_out_public_data_give_the_same_bits_as_serial(method: str, tmp_path: Path) -> None:
    held_out = ["public.name=held-out", "public.samples=30"]
    experiment = quick(*TWO, *held_out, f"method.name={method}")
    straight = loop.run(experiment, tmp_path / "serial")
    on_flower = LocalFederation(
        tmp_path / "federation", experiment, settings={"allow": f"{NETWORKS},{method}"}
    )
    run = on_flower.run()
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**on_flower.states(), "server.safetensors": server} == states(straight)
