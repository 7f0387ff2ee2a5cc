"""`fedgh flower renew`: renewed certificates, verified by TLS against old and new ones."""

import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from fedgh.errors import RunError
from fedgh.flower import keys, reach
from fedgh.flower.folder import FederationFolder
from fedgh.flower.renewal import Renewed, renew
from tests.flower.real import two
from tests.support.commands import inside
from tests.support.tls_server import secure_server


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    path = tmp_path_factory.mktemp("original") / "f"
    return FederationFolder.create(path, two().config, host="127.0.0.1")


@pytest.fixture
def folder(original: FederationFolder, tmp_path: Path) -> FederationFolder:
    """A copy of the federation, which is faster than another one."""
    return FederationFolder(shutil.copytree(original.path, tmp_path / "f"))


def accepted(folder: FederationFolder, authority: Path) -> bool:
    """Return true if a client with this ca.crt accepts the server."""
    server = folder.server
    with secure_server(server / "server.pem", server / "server.key") as (port, _):
        try:
            reach.certificate_of("127.0.0.1", port, authority)
        except RunError:
            return False
    return True


def saved(path: Path) -> Path:
    """Return a copy of a file, as a client keeps it."""
    copy = path.with_name(f"old-{path.name}")
    copy.write_bytes(path.read_bytes())
    return copy


def test_a_renewed_server_is_accepted_by_clients_with_the_old_authority(
    folder: FederationFolder,
) -> None:
    before = (folder.server / "server.pem").read_bytes()
    authority = (folder.server / "ca.crt").read_bytes()
    secret = (folder.server / "superexec.secret").read_bytes()
    renewed = renew(folder)
    end = x509.load_pem_x509_certificate(before).not_valid_after_utc.date()
    assert renewed == Renewed(authority=False, authority_key=False, secret=False, old_end=end)
    assert (folder.server / "server.pem").read_bytes() != before
    assert (folder.server / "ca.crt").read_bytes() == authority
    assert (folder.server / "superexec.secret").read_bytes() == secret
    assert (folder.server / "server.key").stat().st_mode & 0o777 == 0o600
    names = keys.host_names(keys.read_certificate(folder.server / "server.pem"))
    assert names == ["127.0.0.1", "localhost"]
    assert accepted(folder, folder.participant(0) / "ca.crt")


def test_an_authority_that_ends_earlier_is_renewed_with_its_key(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keys.read_private_key(folder.server / "ca.key")
    with monkeypatch.context() as patch:
        patch.setattr(keys, "AUTHORITY_LIFETIME", keys.LIFETIME)
        keys.write_authority(folder.server / "ca.crt", key)
    old = saved(folder.server / "ca.crt")
    old_server = saved(folder.server / "server.pem")
    old_key = saved(folder.server / "server.key")
    assert renew(folder).authority
    new = folder.server / "ca.crt"
    assert new.read_bytes() != old.read_bytes()
    assert (folder.participant(1) / "ca.crt").read_bytes() == new.read_bytes()
    assert accepted(folder, old), "a client may keep the old ca.crt until it ends"
    assert accepted(folder, new)
    with secure_server(old_server, old_key) as (port, _):  # nginx has not been reloaded yet
        assert reach.certificate_of("127.0.0.1", port, new)
    server = keys.read_certificate(folder.server / "server.pem")
    assert server.not_valid_after_utc < keys.read_certificate(new).not_valid_after_utc
    ssl.create_default_context(cafile=new)


def test_a_replaced_authority_is_refused_by_clients_with_the_old_one(
    folder: FederationFolder,
) -> None:
    old = saved(folder.server / "ca.crt")
    assert renew(folder, replace_authority=True).authority_key
    assert not accepted(folder, old)
    assert accepted(folder, folder.participant(0) / "ca.crt")
    assert (folder.server / "ca.key").stat().st_mode & 0o777 == 0o600


def test_another_name_and_another_secret(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = (folder.server / "superexec.secret").read_bytes()
    words = ["flower", "renew", str(folder.path), "--host", "fed.example.org", "--secret"]
    assert inside(monkeypatch, *words) == 0
    names = keys.host_names(keys.read_certificate(folder.server / "server.pem"))
    assert set(names) == {"127.0.0.1", "localhost", "fed.example.org"}
    assert (folder.server / "superexec.secret").read_bytes() != secret
    assert (folder.server / "superexec.secret").stat().st_mode & 0o777 == 0o600
    assert "restart the SuperLink, superexec and nginx" in capsys.readouterr().out


def test_the_authoritys_key_may_be_in_another_place(
    folder: FederationFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    safe = tmp_path / "safe.key"
    (folder.server / "ca.key").rename(safe)
    assert inside(monkeypatch, "flower", "renew", str(folder.path)) == 2
    assert (
        "put it back from its safe place, or name it with --authority-key"
        in capsys.readouterr().err
    )
    words = ["flower", "renew", str(folder.path), "--authority-key", str(safe)]
    assert inside(monkeypatch, *words) == 0
    assert not (folder.server / "ca.key").exists()
    other = tmp_path / "other"
    keys.write_certificates(other, ["localhost"])
    words[-1] = str(other / "ca.key")
    assert inside(monkeypatch, *words) == 2
    assert "is not the key of" in capsys.readouterr().err


def test_status_warns_of_the_end(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(monkeypatch, "flower", "status", str(folder.path)) == 0
    assert "warning" not in capsys.readouterr().out
    monkeypatch.setattr("fedgh.flower.renewal.WARNING_DAYS", 1000)
    assert inside(monkeypatch, "flower", "status", str(folder.path)) == 0
    output = capsys.readouterr().out
    assert "server.pem ends in 824 days" in output
    assert f"renew it: fedgh flower renew {folder.path}" in output
