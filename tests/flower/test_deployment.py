"""One digest wherever it runs: from one process to TLS, keys and a process for every message."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgh import training
from fedgh.core.runs import RunFolder
from fedgh.experiment import Experiment
from fedgh.flower.deployment import Deployment, deployed, follow
from fedgh.flower.keys import write_certificates, write_key_pair
from tests.engines.test_engines import EVERYTHING
from tests.flower.local import House
from tests.flower.real import TWO, federation, left_behind, two
from tests.tiny import numbers, quick, states

pytestmark = [pytest.mark.xdist_group("deployment"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two SuperNodes and a SuperLink."""
    folder = federation(tmp_path_factory.mktemp("flower") / "federation", two())
    with deployed(folder, 2, print) as running:
        yield running
    assert left_behind(folder.path) == []


def on_flower(deployment: Deployment, experiment: Experiment, out: Path) -> RunFolder:
    deployment.folder.experiment.write_text(experiment.config.to_toml())
    return follow(deployment, deployment.train(out), out, lambda _: None)


def states_of_participants(deployment: Deployment, run: RunFolder) -> dict[str, bytes]:
    """The newest state of each, and the server's."""
    found = {"server.safetensors": states(run)["server.safetensors"]}
    for client in range(2):
        states_folder = deployment.folder.participant(client) / "states"
        newest = max(states_folder.glob(f"{run.path.name}-*/*/*.safetensors"))
        found[newest.name] = newest.read_bytes()
    return found


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd", "fml"])
def test_one_digest(method: str, deployment: Deployment, tmp_path: Path) -> None:
    settings = [*EVERYTHING, *TWO, "federation.rounds=2", f"method.name={method}"]
    serial = training.run(quick(*settings), tmp_path / "serial")
    for engine in ("workers", "ray"):
        other = training.run(
            quick(*settings, f"run.engine={engine}", "run.workers=2"), tmp_path / engine
        )
        assert numbers(other) == numbers(serial)
        assert states(other) == states(serial)
    house = House(tmp_path / "house", quick(*settings))
    assert numbers(house.run()) == numbers(serial)
    run = on_flower(deployment, quick(*settings), tmp_path / method)
    assert numbers(run) == numbers(serial)
    assert states_of_participants(deployment, run) == states(serial)
    for record in run.records():
        assert record["wire_bytes"] > record["bytes_up"] + record["bytes_down"]


def join(deployment: Deployment, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Try to connect as somebody who has what is in `folder`."""
    environment = deployment._environment()
    return subprocess.run(
        [
            *("flower-supernode", "--superlink", environment["SUPERLINK"]),
            *("--host", "127.0.0.1", "--port", str(_port()), "--max-retries", "1"),
            *arguments,
        ],
        cwd=folder,
        env={**environment, "FLWR_HOME": str(folder / "flwr")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def _port() -> int:
    from fedgh.flower.deployment import _free_ports

    return _free_ports(1)[0]


def test_an_unknown_key_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key", tmp_path / "key.pub")
    ca = str(deployment.folder.server / "ca.crt")
    done = join(
        deployment, tmp_path, "--root-certificates", ca, "--auth-supernode-private-key", "key"
    )
    print(done.stdout, done.stderr)
    assert done.returncode != 0


def test_a_server_with_another_authority_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    write_certificates(tmp_path, ["127.0.0.1"])
    key = str(deployment.folder.participant(0) / "key")
    done = join(
        deployment,
        tmp_path,
        *("--root-certificates", "ca.crt", "--auth-supernode-private-key", key),
    )
    print(done.stdout, done.stderr)
    assert done.returncode != 0


def test_plaintext_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    done = join(deployment, tmp_path, "--insecure")
    print(done.stdout, done.stderr)
    assert done.returncode != 0


def test_secrets_are_for_their_owner_only(deployment: Deployment) -> None:
    secret = [
        *(deployment.folder.server / name for name in ("ca.key", "server.key", "superexec.secret")),
        *(deployment.folder.participant(client) / "key" for client in range(2)),
    ]
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in secret)
