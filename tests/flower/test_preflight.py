"""`fedgh flower check`: each problem of a client is found before it joins, and said in one line."""

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from fedgh import config
from fedgh.errors import ConfigError
from fedgh.flower import keys, preflight, renewal
from fedgh.flower.deployment import free_ports
from fedgh.flower.facts import Facts
from fedgh.flower.folder import FederationFolder
from fedgh.flower.preflight import Finding
from fedgh.privacy.ledger import Ledger, OverBoundError
from tests.flower.local import NETWORKS
from tests.flower.real import two
from tests.support.commands import inside
from tests.support.tls_server import secure_server

SETTINGS = {
    "federation": {"clients": 2, "rounds": 3},
    "data": {"name": "private", "classes": ["malignant", "benign"]},
    "model": {"rep_dim": 8},
    "method": {"name": "fedgh"},
    "local": {"epochs": 1},
    "run": {"deadline": 100.0},
}

APP = """
import torch
from torch import nn

from fedgh.flower import ClientSpec, client_app


def make_client(task, node_config):
    print("a line that must not end up in the answer")
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    return ClientSpec(nn.Linear(5, task.rep_dim), (x, {labels}))


app = client_app(make_client)
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    """A federation whose clients have their own data, and an app for client 1."""
    path = tmp_path_factory.mktemp("original") / "f"
    made = FederationFolder.create(path, config.parse(SETTINGS), host="127.0.0.1")
    write_app(made.participant(1), "(x[:, 0] > 0).long()")
    return made


@pytest.fixture(autouse=True)
def own_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, which preflight takes for the node's own: another program may use the usual."""
    port = free_ports(1)[0]
    addresses = preflight._addresses
    monkeypatch.setattr(preflight, "_addresses", lambda *given: (*addresses(*given)[:2], port))
    return port


@pytest.fixture
def folder(original: FederationFolder, tmp_path: Path) -> FederationFolder:
    """A copy of the federation, which is faster than another one."""
    return FederationFolder(shutil.copytree(original.path, tmp_path / "f"))


@pytest.fixture(autouse=True)
def fresh_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("FEDGH_NODE_PORT", str(free_ports(1)[0]))
    yield
    sys.modules.pop("ward", None)


def write_app(client: Path, labels: str) -> None:
    (client / "ward.py").write_text(APP.replace("{labels}", labels))
    with (client / "node.conf").open("a") as file:
        file.write('app="ward:app"\n')


@contextmanager
def running(folder: FederationFolder, status: int = 400, clock_ahead: float = 0.0) -> Iterator[str]:
    """Run a server with the federation's certificate; yield its address."""
    server = folder.server
    with secure_server(server / "server.pem", server / "server.key", status, clock_ahead) as (
        port,
        _,
    ):
        yield f"127.0.0.1:{port}"


def findings(client: Path, server: str, *, trial: bool = False) -> dict[str, Finding]:
    return {one.check: one for one in preflight.check(client, server, trial=trial)}


def only_failure(found: dict[str, Finding]) -> Finding:
    (failed,) = [one for one in found.values() if one.status == "failed"]
    assert failed.advice, "it says what to do next"
    return failed


def test_a_client_that_is_ready_passes_and_its_states_are_not_touched(
    folder: FederationFolder,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    client = folder.participant(1)
    before = sorted(path.name for path in client.rglob("*"))
    with running(folder) as server:
        command = ["flower", "check", str(client), "--server", server, "--format", "json"]
        code = inside(monkeypatch, *command)
    result = json.loads(capfd.readouterr().out)
    assert code == 0, result
    assert result["ok"] is True
    texts = {one["check"]: one["text"] for one in result["findings"]}
    assert texts.keys() == {
        *("key", "ca.crt", "server", "certificate", "clock", "registration", "versions"),
        *("node.conf", "data", "round"),
    }
    assert "60 samples of shape (5,)" in texts["data"]
    assert "malignant" in texts["data"]
    assert "network Linear" in texts["data"]
    assert "valid for 824 days" in texts["certificate"]
    after = sorted(path.name for path in client.rglob("*") if "__pycache__" not in path.parts)
    assert [name for name in after if not name.endswith(".pyc")] == before


def test_a_client_of_a_partitioned_data_set_needs_no_app(tmp_path: Path) -> None:
    made = FederationFolder.create(tmp_path / "f", two().config, node_config=f'allow="{NETWORKS}"')
    with running(made) as server:
        found = findings(made.participant(0), server, trial=True)
    assert found["round"].status == "ok", found["round"]
    assert "accuracy" in found["round"].text


def test_the_question_about_the_key_is_one_that_flower_refuses(folder: FederationFolder) -> None:
    server = folder.server
    with secure_server(server / "server.pem", server / "server.key") as (port, requests):
        findings(folder.participant(1), f"127.0.0.1:{port}")
    assert [path for path, _ in requests] == ["/v1/fleet/activate-node"]


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (412, "the server does not know this key"),
        (401, "the server refuses the signature"),
        (502, "the SuperLink behind it does not"),
        (403, "not that of a SuperLink"),
    ],
)
def test_answers_of_the_server(status: int, problem: str, folder: FederationFolder) -> None:
    with running(folder, status) as server:
        failed = only_failure(findings(folder.participant(1), server))
    assert failed.check == "registration"
    assert problem in failed.text


def test_a_server_of_another_authority(folder: FederationFolder, tmp_path: Path) -> None:
    keys.write_certificates(tmp_path / "other", ["127.0.0.1"])
    with secure_server(tmp_path / "other" / "server.pem", tmp_path / "other" / "server.key") as (
        port,
        requests,
    ):
        failed = only_failure(findings(folder.participant(1), f"127.0.0.1:{port}"))
    assert failed.check == "certificate"
    assert "not signed by the authority in ca.crt" in failed.text
    assert requests == [], "nothing is sent to it"


def test_a_certificate_for_another_name(folder: FederationFolder) -> None:
    authority = keys.read_private_key(folder.server / "ca.key")
    keys.write_server_certificate(folder.server, authority, ["fed.example.org"])
    with running(folder) as server:
        failed = only_failure(findings(folder.participant(1), server))
    assert failed.check == "certificate"
    assert "not for the name 127.0.0.1" in failed.text
    assert "renew --host 127.0.0.1" in failed.advice


def test_a_certificate_that_has_ended(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_certificate(folder, monkeypatch, days_ago=826)
    with running(folder) as server:
        failed = only_failure(findings(folder.participant(1), server))
    assert failed.check == "certificate"
    assert "has ended" in failed.text
    assert "flower renew" in failed.advice


def test_certificates_that_end_soon(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_certificate(folder, monkeypatch, days_ago=800)
    with running(folder) as server:
        found = findings(folder.participant(1), server)
    assert found["certificate"].status == "warning"
    assert "ends in 24 days" in found["certificate"].text
    (warning,) = renewal.warnings(folder.server, "fedgh flower renew f")
    assert "server.pem ends in 24 days" in warning


@pytest.mark.parametrize(
    ("ahead", "status"),
    [(-8, "failed"), (0, "ok"), (4, "warning"), (60, "warning"), (400, "failed")],
)
def test_clocks_that_differ(ahead: float, status: str, folder: FederationFolder) -> None:
    """The clock of this machine is right; that of the server is ahead."""
    with running(folder, clock_ahead=ahead) as server:
        found = findings(folder.participant(1), server)["clock"]
    assert found.status == status
    assert ("NTP" in found.advice) == (status != "ok")


def test_the_own_port_of_a_node_that_runs(folder: FederationFolder, own_port: int) -> None:
    with running(folder) as server:
        assert "own port" not in findings(folder.participant(1), server)
        with socket.create_server(("127.0.0.1", own_port)):
            warning = findings(folder.participant(1), server)["own port"]
    assert warning.status == "warning"
    assert f"port {own_port} of 127.0.0.1 is in use" in warning.text


def test_a_port_that_nobody_listens_on(folder: FederationFolder) -> None:
    failed = only_failure(findings(folder.participant(1), f"127.0.0.1:{free_ports(1)[0]}"))
    assert failed.check == "server"
    assert "cannot be reached" in failed.text


def test_a_server_without_tls(folder: FederationFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        plain.settimeout(10)
        from threading import Thread

        def answer() -> None:
            for _ in range(2):  # the test of the connection, then the one of the certificate
                one, _ = plain.accept()
                one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                one.close()

        thread = Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{plain.getsockname()[1]}"
        failed = only_failure(findings(folder.participant(1), address))
        thread.join()
    assert failed.check == "certificate"
    assert "TLS" in failed.text or "without an answer" in failed.text


def test_a_key_that_others_can_read_or_that_is_not_the_registered_one(
    folder: FederationFolder,
) -> None:
    client = folder.participant(1)
    (client / "key").chmod(0o640)
    with running(folder) as server:
        failed = only_failure(findings(client, server))
        assert (failed.check, failed.status) == ("key", "failed")
        assert "readable by others" in failed.text
        assert "chmod 600" in failed.advice
        (client / "key").chmod(0o600)
        (client / "key.pub").write_bytes((folder.participant(0) / "key.pub").read_bytes())
        assert "is not the public key of" in only_failure(findings(client, server)).text


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ("(x[:, 0] > 0).long() + 1", "labels from"),
        ("torch.zeros(60, dtype=torch.long)[:50]", "60 inputs and 50 labels"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_data_that_do_not_fit(labels: str, problem: str, folder: FederationFolder) -> None:
    write_app(folder.participant(0), labels)
    with running(folder) as server:
        failed = only_failure(findings(folder.participant(0), server, trial=True))
    assert failed.check == "data"
    assert problem in failed.text


def test_a_network_that_does_not_fit(folder: FederationFolder) -> None:
    client = folder.participant(1)
    text = (client / "ward.py").read_text()
    (client / "ward.py").write_text(text.replace("nn.Linear(5,", "nn.Linear(6,"))
    with running(folder) as server:
        failed = only_failure(findings(client, server, trial=True))
    assert failed.check == "data"
    assert "Linear" in failed.text


def test_a_method_that_the_client_does_not_allow(folder: FederationFolder) -> None:
    path = folder.participant(1) / "federation.json"
    facts = Facts.read(path)
    Facts(
        facts.versions, facts.deadline, {**facts.settings, "method": {"name": "evil:Method"}}
    ).write(path)
    with running(folder) as server:
        failed = only_failure(findings(folder.participant(1), server, trial=True))
    assert "evil:Method" in failed.text
    assert "does not allow it" in failed.text


def test_a_round_that_takes_longer_than_the_deadline(folder: FederationFolder) -> None:
    path = folder.participant(1) / "federation.json"
    facts = Facts.read(path)
    Facts(facts.versions, 1e-6, facts.settings).write(path)
    with running(folder) as server:
        failed = only_failure(findings(folder.participant(1), server, trial=True))
    assert failed.check == "round"
    assert "deadline" in failed.advice


@pytest.mark.parametrize(
    ("package", "version", "status"),
    [("fedgh", "0.0.1", "failed"), ("flwr", "1.40.0", "failed"), ("torch", "2.6.0", "warning")],
)
def test_other_versions(package: str, version: str, status: str, folder: FederationFolder) -> None:
    path = folder.participant(1) / "federation.json"
    facts = Facts.read(path)
    Facts({**facts.versions, package: version}, facts.deadline, facts.settings).write(path)
    with running(folder) as server:
        found = findings(folder.participant(1), server)["versions"]
    assert found.status == status
    assert f"the operator had {version}" in found.text


def test_missing_files_of_the_operator(folder: FederationFolder) -> None:
    client = folder.participant(1)
    (client / "federation.json").unlink()
    (client / "ca.crt").write_text("nothing")
    with running(folder) as server:
        found = findings(client, server, trial=True)
    assert only_failure(found).check == "ca.crt"
    assert found["server"].status == "ok"
    assert found["versions"].status == "warning"
    assert "ask the operator for it" in found["versions"].advice
    assert not found.keys() & {"certificate", "registration", "round"}


def test_a_spent_privacy_bound_is_found_and_nothing_is_spent(tmp_path: Path) -> None:
    privacy = {"protects": "sample", "epsilon": 4.0}
    made = FederationFolder.create(tmp_path / "f", config.parse({**SETTINGS, "privacy": privacy}))
    client = made.participant(1)
    write_app(client, "(x[:, 0] > 0).long()")
    with (client / "node.conf").open("a") as file:
        file.write("max-epsilon=3.0\n")
    with running(made) as server:
        assert findings(client, server, trial=True)["round"].status == "ok"
        assert not (client / "states").exists()
        spend_all(client / "states", 3.0)
        spent = (client / "states" / "privacy.json").read_bytes()
        failed = only_failure(findings(client, server, trial=True))
    assert failed.check == "round"
    assert "bound of ε = 3" in failed.text
    assert (client / "states" / "privacy.json").read_bytes() == spent


def spend_all(states: Path, epsilon: float) -> None:
    states.mkdir()
    ledger = Ledger(states / "privacy.json", max_epsilon=epsilon, delta=1e-5)
    with suppress(OverBoundError):
        while True:
            ledger.spend(5.0)


def test_a_wrong_line_in_node_conf(folder: FederationFolder) -> None:
    with (folder.participant(1) / "node.conf").open("a") as file:
        file.write("max-epocs=5\n")
    with running(folder) as server:
        failed = only_failure(findings(folder.participant(1), server))
    assert failed.check == "node.conf"
    assert "max-epocs" in failed.text


def test_changed_data_are_found_in_the_states_of_a_run(folder: FederationFolder) -> None:
    home = folder.participant(1) / "states" / "experiments" / "0123" / "client-1"
    home.mkdir(parents=True)
    (home / "data.digest").write_bytes(b"other data")
    (home / "name.txt").write_text("run-7\n")
    with running(folder) as server:
        found = list(preflight.check(folder.participant(1), server))
    (warning,) = [one for one in found if one.check == "data" and one.status == "warning"]
    assert "the run run-7" in warning.text


def test_the_text_form_and_the_exit_code(
    folder: FederationFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    client = str(folder.participant(1))
    code = inside(monkeypatch, "flower", "check", client, "--server", address, "--no-trial")
    assert code == 1
    output = capsys.readouterr().out
    assert "OK      key" in output
    assert "FAILED  server" in output
    assert " -> check the address in node.sh" in output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{f}"], "is not the folder of a client"),
        (["{f}/participants/1", "--server", "nowhere"], "expected a name and a port"),
    ],
)
def test_a_wrong_command(
    arguments: list[str],
    problem: str,
    folder: FederationFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.format(f=folder.path) for word in arguments]
    assert inside(monkeypatch, "flower", "check", *words) == 2
    assert problem in capsys.readouterr().err


def write_certificate(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, days_ago: int
) -> None:
    """Write a certificate of the server as if some days ago."""
    authority = keys.read_private_key(folder.server / "ca.key")
    with monkeypatch.context() as patch:
        patch.setattr(keys, "datetime", past(days_ago))
        keys.write_server_certificate(folder.server, authority, ["127.0.0.1"])


def past(days: int) -> type[datetime]:
    """Return a clock that is some days late."""

    class Past(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) - timedelta(days=days)

    return Past


def test_the_address_and_the_port_are_those_with_which_node_sh_starts(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = folder.participant(1)
    with running(folder) as server, socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.undo()  # of the fixture `own_port`
        monkeypatch.setenv("FEDGH_SUPERLINK", server)
        monkeypatch.setenv("FEDGH_NODE_PORT", str(port))
        found = {one.check: one for one in preflight.check(client, trial=False)}
    assert found["server"].text == f"{server} can be reached"
    assert f"port {port} " in found["own port"].text
    monkeypatch.setenv("FEDGH_SUPERLINK", "nowhere")
    with pytest.raises(ConfigError, match="FEDGH_SUPERLINK nowhere: expected a name and a port"):
        list(preflight.check(client))


def test_a_client_of_a_federation_with_secure_aggregation_is_checked(tmp_path: Path) -> None:
    more = {
        "federation": {"clients": 3, "rounds": 3},
        "method": {"name": "fedproto"},
        "secure": {"enabled": True},
    }
    made = FederationFolder.create(
        tmp_path / "f",
        config.parse({**SETTINGS, **more}),
        host="127.0.0.1",
        node_config="min-peers=3",
    )
    client = made.participant(1)
    write_app(client, "(x[:, 0] > 0).long()")
    peers = client / "peers"
    with running(made) as server:
        found = findings(client, server, trial=True)
        assert {one.check for one in found.values() if one.status == "failed"} == set()
        assert "public keys of 3 clients; compare them" in found["peers"].text
        assert "without masks" in found["round"].text
        key = (peers / "2.pub").read_text()
        (peers / "2.pub").unlink()
        assert "lacks the public keys of clients 2" in only_failure(findings(client, server)).text
        shutil.copy(peers / "0.pub", peers / "2.pub")
        assert "the same public key" in only_failure(findings(client, server)).text
        shutil.copy(client / "key.pub", peers / "2.pub")
        (peers / "1.pub").write_text(key)
        assert "another key for this client" in only_failure(findings(client, server)).text
        (peers / "1.pub").write_bytes((client / "key.pub").read_bytes())
        (peers / "2.pub").write_text(key)
        settings = client / "node.conf"
        settings.write_text(settings.read_text().replace("min-peers=3", "min-peers=4"))
        failed = only_failure(findings(client, server))
        assert failed.text == "min-peers is 4, but there are only 3 clients"
