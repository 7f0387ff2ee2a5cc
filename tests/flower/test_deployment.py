"""One digest wherever it runs: from one process to TLS, keys and a process for every message."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from fedgh.errors import RunError
from fedgh.flower import node
from fedgh.flower.deployment import Deployment, deployed, follow, free_ports
from fedgh.flower.folder import FederationFolder
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.local import LocalFederation
from tests.flower.real import TWO, federation, last_states, running_processes_of, two
from tests.support.families import FAMILIES
from tests.support.runs import EVERYTHING
from tests.support.tiny import numbers, quick, states

pytestmark = [pytest.mark.xdist_group("deployment"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two SuperNodes and a SuperLink."""
    folder = federation(tmp_path_factory.mktemp("flower") / "federation", two())
    with deployed(folder, 2, print) as running:
        yield running
    assert running_processes_of(folder.path) == []


def settings(method: str) -> list[str]:
    needed = FAMILIES.get(method, [])
    return [*EVERYTHING, *TWO, "federation.rounds=2", f"method.name={method}", *needed]


def on_flower(deployment: Deployment, method: str, out: Path) -> RunFolder:
    deployment.folder.experiment.write_text(quick(*settings(method)).config.to_toml())
    return follow(deployment, deployment.train(out), out, lambda _: None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize(
    "method",
    [
        "fedgh",
        *(pytest.param(m, marks=pytest.mark.faults) for m in ("fedproto", "fd", "fml", *FAMILIES)),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_one_digest(method: str, deployment: Deployment, tmp_path: Path) -> None:
    serial = loop.run(quick(*settings(method)), tmp_path / "serial")
    for engine in ("workers", "ray"):
        experiment = quick(*settings(method), f"run.engine={engine}", "run.workers=2")
        other = loop.run(experiment, tmp_path / engine)
        assert numbers(other) == numbers(serial)
        assert states(other) == states(serial)
    local = LocalFederation(tmp_path / "local", quick(*settings(method)))
    assert numbers(local.run()) == numbers(serial)
    run = on_flower(deployment, method, tmp_path / "flower")
    assert numbers(run) == numbers(serial)
    assert last_states(deployment.folder, run) == states(serial)
    for record in run.records():
        assert record.wire_bytes > record.bytes_up + record.bytes_down


@pytest.fixture
def stranger(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FederationFolder:
    """A federation that is not this one; its participants knock at this one's door."""
    for name, value in deployment.environment(FEDGH_NODE_PORT=free_ports(1)[0]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(node, "RETRY_DELAYS", (0.1,))
    return federation(tmp_path / "stranger", two())


def refusal(stranger: FederationFolder) -> str:
    with pytest.raises(RunError) as refused:
        node.join(stranger.participant(0), print)
    assert running_processes_of(stranger.path) == []
    return str(refused.value)


def test_an_unknown_key_is_refused(deployment: Deployment, stranger: FederationFolder) -> None:
    ca = deployment.folder.server / "ca.crt"
    (stranger.participant(0) / "ca.crt").write_bytes(ca.read_bytes())
    assert "the operator has not registered key.pub" in refusal(stranger)


@pytest.mark.faults
def test_a_server_of_another_authority_is_refused(stranger: FederationFolder) -> None:
    assert "ask the operator for the right ca.crt" in refusal(stranger)


@pytest.mark.faults
def test_plaintext_is_refused(stranger: FederationFolder) -> None:
    script = stranger.participant(0) / "node.sh"
    text = re.sub(
        r"--root-certificates ca.crt|--auth-supernode-private-key key", "", script.read_text()
    )
    script.write_text(
        text.replace("flower-supernode", "flower-supernode --insecure --max-retries 1")
    )
    assert refusal(stranger) == "the server accepts only TLS; start the node without --insecure"


def test_secrets_are_for_their_owner_only(deployment: Deployment) -> None:
    secret = [
        *(deployment.folder.server / name for name in ("ca.key", "server.key", "superexec.secret")),
        *(deployment.folder.participant(client) / "key" for client in range(2)),
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in secret)
