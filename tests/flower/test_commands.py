"""`fedgh flower` before any process is started: files, errors and processes."""

import gc
import re
import signal
import socket
import ssl
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cryptography import x509

from fedgh import config
from fedgh.flower.folder import FederationFolder
from fedgh.flower.keys import read_public_key
from fedgh.flower.node import explanation
from fedgh.flower.processes import Processes, clean_end, group_is_alive, running_processes
from fedgh.flower.server import read_participants
from fedgh.runs.folder import RunFolder
from tests.flower.real import two
from tests.support.commands import SET, inside


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    return FederationFolder.create(tmp_path / "f", two().config, host="fed.example.org")


def test_init_writes_all_files_of_a_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "two words"
    assert inside(monkeypatch, "flower", "init", str(path), "demo", *SET) == 0
    made = FederationFolder.open(path)
    assert config.load(made.experiment).federation.clients == 5
    assert len(read_participants(made.keys, 5)) == 5
    for client in range(5):
        own = made.participant(client)
        assert {item.name for item in own.iterdir()} == {
            *("ca.crt", "key", "key.pub", "node.conf", "node.sh", "federation.json", "services")
        }
        assert f"client={client}\n" in (own / "node.conf").read_text()
    app = tomllib.loads((made.server / "app" / "pyproject.toml").read_text())
    assert app["project"]["dependencies"] == []
    scripts = [*made.server.glob("*.sh"), *made.participants.glob("*/*.sh")]
    assert len(scripts) == 12
    for script in scripts:
        assert not re.search(r"@[A-Z_]+@", script.read_text()), "every placeholder is replaced"
        subprocess.run(["sh", "-n", str(script)], check=True)
    assert not re.search(r"@[A-Z_]+@", (made.server / "nginx.conf").read_text())


def test_the_servers_certificate_has_its_name_and_is_signed_by_the_authority(
    folder: FederationFolder,
) -> None:
    authority = x509.load_pem_x509_certificate((folder.server / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((folder.server / "server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    ssl.create_default_context(cafile=folder.server / "ca.crt")


def test_a_key_that_a_client_created_with_ssh_keygen_is_accepted(
    folder: FederationFolder, tmp_path: Path
) -> None:
    made = tmp_path / "key"
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(made)]
    try:
        subprocess.run(command, check=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    (folder.keys / "1.pub").write_bytes(made.with_suffix(".pub").read_bytes())
    keys = read_participants(folder.keys, 2)
    assert keys[1] == read_public_key(made.with_suffix(".pub"))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["init", "{f}"], "exists and is not empty"),
        (["init", "{new}", "nowhere"], "no experiment or file 'nowhere'"),
        (["init", "{new}", "--host", "a b; rm"], "expected a name or address"),
        (["init", "{new}", "--host", f"{'a' * 64}.org"], "expected a name or address"),
        (["init", "{new}", "--host", ".".join(["a" * 50] * 6)], "expected a name or address"),
        (
            ["init", "{new}", "--set", "method.name=fedavg"],
            "fedavg needs the same network at all clients",
        ),
        (["up", "{new}"], "is not the folder of a federation"),
        (["up", "{f}"], "is a finished run; choose another --out"),
        (["up", "{f}", "--out", "{new}"], "lacks the public keys of clients 1"),
        (["join", "{new}"], "is not the folder of a client"),
        (["status", "{new}"], "is not the folder of a federation"),
        (["stop", "{new}"], "is not the folder of a federation"),
    ],
)
def test_a_wrong_command_prints_one_error(
    arguments: list[str],
    problem: str,
    folder: FederationFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder.keys / "1.pub").unlink()
    (folder.path / "run").mkdir()
    (folder.path / "run" / "summary.json").write_text("{}")
    folders = {"f": str(folder.path), "new": str(tmp_path / "new")}
    code = inside(monkeypatch, "flower", *(argument.format(**folders) for argument in arguments))
    assert code in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert problem in error


def test_missing_shared_or_invalid_keys_are_refused(folder: FederationFolder) -> None:
    from fedgh.errors import ConfigError

    (folder.keys / "1.pub").write_bytes((folder.keys / "0.pub").read_bytes())
    with pytest.raises(ConfigError, match="two clients have the same public key"):
        read_participants(folder.keys, 2)
    (folder.keys / "1.pub").unlink()
    with pytest.raises(ConfigError, match="lacks the public keys of clients 1"):
        read_participants(folder.keys, 2)
    (folder.keys / "1.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(ConfigError, match=r"1\.pub is not a readable OpenSSH public key"):
        read_participants(folder.keys, 2)


def test_status_and_stop_of_a_federation_that_does_not_run(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(monkeypatch, "flower", "status", str(folder.path)) == 0
    assert inside(monkeypatch, "flower", "stop", str(folder.path)) == 0
    assert capsys.readouterr().out.count("nothing is running") == 2
    assert RunFolder(folder.path / "run").records() == []


def test_a_certificate_that_has_ended_is_not_taken_for_another_authoritys() -> None:
    said = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired"
    assert "has ended; the operator can renew" in (explanation(said) or "")
    assert "ask the operator for the right ca.crt" in (explanation(said[:50]) or "")


def test_a_node_that_ends_without_a_reason_is_explained() -> None:
    """Flower prints the same for a wrong clock and for a revoked key, and no more."""
    output = "INFO :      Starting Flower SuperNode\nINFO :      SuperNode terminated gracefully.\n"
    assert "clock is more than 5 s ahead" in str(explanation(output))
    refused = output.replace("SuperNode term", "Failed to activate SuperNode.\nSuperNode term")
    assert "has not registered key.pub" in str(explanation(refused))


@pytest.mark.parametrize("content", [None, "nonsense"])
@pytest.mark.parametrize(
    ("name", "advice"),
    [("key", "put it back from a copy"), ("ca.crt", "ask the operator for ca.crt")],
)
def test_join_names_a_file_that_is_missing_or_damaged(
    name: str,
    advice: str,
    content: str | None,
    folder: FederationFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = folder.participant(0)
    (own / name).unlink()
    if content is not None:
        (own / name).write_text(content)
    assert inside(monkeypatch, "flower", "join", str(own)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {own / name} is not a readable ")
    assert advice in said.err
    assert said.err.count("\n") == 1


def test_join_names_a_port_that_it_cannot_use(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(folder.participant(0))
    for wrong in ("hello", "99999", "0"):
        monkeypatch.setenv("FEDGH_NODE_PORT", wrong)
        assert inside(monkeypatch, "flower", "join", own) == 2
        assert f"FEDGH_NODE_PORT={wrong}: expected a port" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setenv("FEDGH_NODE_PORT", str(port))
        assert inside(monkeypatch, "flower", "join", own) == 1
        assert f"port {port} of 127.0.0.1 is in use, perhaps because" in capsys.readouterr().err


def test_a_node_without_its_key_or_ca_crt_is_explained() -> None:
    said = "ERROR [flwr] Exit Code: 302\nUnable to parse the private key file."
    assert "the file key is missing" in str(explanation(said))
    said = "FileNotFoundError: [Errno 2] No such file or directory: 'key'"
    assert "the file key is missing" in str(explanation(said))
    said = "ERROR [flwr] Path argument `--root-certificates` does not point to a file."
    assert "the file ca.crt is missing" in str(explanation(said))


def test_processes_are_ended_together_with_their_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgh.flower.processes.GRACE", 1.0)
    processes = Processes(tmp_path / "processes.json", tmp_path / "logs")
    stubborn = f"trap '' TERM; {sys.executable} -c 'import time; time.sleep(300)' & wait"
    processes.start("obedient", ["sh", "-c", "sleep 300 & wait"], {"PATH": "/usr/bin:/bin"})
    processes.start("stubborn", ["sh", "-c", stubborn], {"PATH": "/usr/bin:/bin"})
    leaders = running_processes(tmp_path / "processes.json")[1]
    assert set(leaders) == {"obedient", "stubborn"}
    processes.end()
    assert not any(map(group_is_alive, leaders.values()))
    assert not (tmp_path / "processes.json").exists()


def test_a_process_with_another_start_time_is_not_taken_for_a_registered_one(
    tmp_path: Path,
) -> None:
    processes = Processes(tmp_path / "processes.json", tmp_path / "logs")
    processes.start("mine", ["sleep", "300"], {"PATH": "/usr/bin:/bin"})
    text = (tmp_path / "processes.json").read_text()
    other = re.sub(r"(\[\d+, )\d+\]", r"\g<1>1]", text)
    (tmp_path / "other.json").write_text(other)
    assert running_processes(tmp_path / "other.json")[1] == {}
    processes.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_destructor_is_not_lost(number: signal.Signals) -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(number)

    with clean_end() as check:
        check()
        Interrupted()
        gc.collect()
        with pytest.raises(KeyboardInterrupt):
            check()
