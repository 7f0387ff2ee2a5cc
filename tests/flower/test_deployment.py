"""A federation of real processes gives the same bits as all engines, and refuses wrong keys."""

import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
import ray

from fedgh.errors import RunError
from fedgh.flower import node, preflight, reach
from fedgh.flower.deployment import Deployment, deployed, follow, free_ports
from fedgh.flower.folder import FederationFolder
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.local import LocalFederation
from tests.flower.real import TWO, federation, last_states, running_processes_of, two
from tests.support.families import FAMILIES
from tests.support.runs import EVERYTHING
from tests.support.states import states
from tests.support.tiny import numbers, quick

pytestmark = [pytest.mark.xdist_group("deployment"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A running federation: a SuperLink and two SuperNodes."""
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
    """One Ray cluster for all tests."""
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
def test_all_engines_and_a_real_federation_give_the_same_bits(
    method: str, deployment: Deployment, tmp_path: Path
) -> None:
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
def other_federation(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FederationFolder:
    """The folder of another federation, whose clients connect to this one's SuperLink."""
    for name, value in deployment.environment(FEDGH_NODE_PORT=free_ports(1)[0]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(node, "RETRY_DELAYS", (0.1,))
    return federation(tmp_path / "other_federation", two())


def refusal(other_federation: FederationFolder) -> str:
    with pytest.raises(RunError) as refused:
        node.join(other_federation.participant(0), print)
    assert running_processes_of(other_federation.path) == []
    return str(refused.value)


def test_a_client_with_an_unknown_key_is_refused(
    deployment: Deployment, other_federation: FederationFolder
) -> None:
    ca = deployment.folder.server / "ca.crt"
    (other_federation.participant(0) / "ca.crt").write_bytes(ca.read_bytes())
    assert "the operator has not registered key.pub" in refusal(other_federation)


@pytest.mark.faults
def test_a_client_refuses_a_server_of_another_authority(other_federation: FederationFolder) -> None:
    assert "ask the operator for the right ca.crt" in refusal(other_federation)


@pytest.mark.faults
def test_a_client_without_tls_is_refused(other_federation: FederationFolder) -> None:
    script = other_federation.participant(0) / "node.sh"
    text = re.sub(
        r"--root-certificates ca.crt|--auth-supernode-private-key key", "", script.read_text()
    )
    script.write_text(
        text.replace("flower-supernode", "flower-supernode --insecure --max-retries 1")
    )
    assert (
        refusal(other_federation)
        == "the server accepts only TLS; start the node without --insecure"
    )


def registration(client: Path, deployment: Deployment) -> tuple[str, str]:
    """Return what `fedgh flower check` finds about the client's clock and key."""
    server = deployment.environment()["FEDGH_SUPERLINK"]
    found = {one.check: one for one in preflight.check(client, server, trial=False)}
    return found["clock"].status, found["registration"].text


def test_the_check_of_a_client_asks_a_real_superlink(
    deployment: Deployment, other_federation: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = deployment.folder.participant(0), other_federation.participant(0)
    shutil.copy(deployment.folder.server / "ca.crt", unknown / "ca.crt")
    assert registration(known, deployment) == ("ok", "the server knows this key")
    assert registration(unknown, deployment) == ("ok", "the server does not know this key")
    for seconds, accepted in ((reach.MAX_AHEAD + 3, False), (-60, True), (-310, False)):

        class Wrong(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None, ahead: float = seconds) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(seconds=ahead)

        monkeypatch.setattr(reach, "datetime", Wrong)
        _, text = registration(known, deployment)
        assert text == (
            "the server knows this key" if accepted else "the server refuses the signature"
        )
    nodes = deployment.flwr("supernode", "list", "federation")["nodes"]
    assert len(nodes) == 2, "the questions have registered nobody"


def test_private_keys_are_readable_by_their_owner_only(deployment: Deployment) -> None:
    secret = [
        *(deployment.folder.server / name for name in ("ca.key", "server.key", "superexec.secret")),
        *(deployment.folder.participant(client) / "key" for client in range(2)),
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in secret)
