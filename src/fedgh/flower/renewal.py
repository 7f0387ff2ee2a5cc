"""Renew the server's certificate, the authority, and the secret of the server's processes.

A renewed authority keeps its key. So clients with the old ca.crt accept the renewed server until
the old ca.crt ends, and may replace it at any time before. If the key itself is replaced, for
example after it was stolen, clients cannot connect until they have the new ca.crt.
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from fedgh.errors import ConfigError
from fedgh.files import read_bytes, write_atomic
from fedgh.flower import keys
from fedgh.flower.folder import FederationFolder, check_host

WARNING_DAYS = 60
"""Days before the end of a certificate from which fedgh warns."""


@dataclass(frozen=True)
class Renewed:
    """The result of `renew`: the files that it wrote beside the server's certificate and key."""

    authority: bool  # ca.crt
    authority_key: bool  # ca.key, too: clients refuse the server until they have the new ca.crt
    secret: bool  # superexec.secret
    old_end: date  # of the server's certificate that was replaced


def renew(
    folder: FederationFolder,
    *,
    hosts: list[str] | None = None,
    authority_key: Path | None = None,
    replace_authority: bool = False,
    secret: bool = False,
) -> Renewed:
    """Renew the server's certificate; renew that of the authority if it would end earlier.

    `hosts` are more names of the server. `authority_key` is the place of ca.key if it is not in the
    folder. If this function is interrupted, call it again. Raise ConfigError if a file is missing
    or does not fit.
    """
    server = folder.server
    key_file = authority_key or server / "ca.key"
    before = keys.read_certificate(server / "server.pem")
    for host in hosts or []:
        check_host(host)
    names = list(dict.fromkeys([*keys.host_names(before), *(hosts or [])]))
    if replace_authority:
        key = keys.new_key()
        keys.write_private(key_file, key)
    else:
        key = _authority_key(key_file, server / "ca.crt")
    renew_authority = replace_authority or _ends_too_early(server / "ca.crt")
    if renew_authority:
        keys.write_authority(server / "ca.crt", key)
        content = read_bytes(server / "ca.crt", keys.MAX_KEY)
        for copy in folder.participants.glob("*/ca.crt"):
            write_atomic(copy, content)
    keys.write_server_certificate(server, key, names)
    if secret:
        keys.write_secret(server / "superexec.secret")
    old_end = before.not_valid_after_utc.date()
    return Renewed(renew_authority, replace_authority, secret, old_end)


def warnings(server: Path, command: str) -> list[str]:
    """Return a line for each certificate in the folder `server` that ends soon or has ended.

    `command` renews them.
    """
    found = []
    for name in ("server.pem", "ca.crt"):
        path = server / name
        if path.is_file():
            certificate = keys.read_certificate(path)
            days = keys.days_left(certificate)
            if days < WARNING_DAYS:
                end = certificate.not_valid_after_utc.date()
                when = f"ends in {days} days, on {end}" if days >= 0 else f"ended on {end}"
                found.append(f"{path} {when}; renew it: {command}")
    return found


def _authority_key(path: Path, certificate: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of the authority; raise ConfigError if it is not that of the certificate."""
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing; put it back from its safe place, or name it with --authority-key"
        )
    key = keys.read_private_key(path)
    if key.public_key() != keys.read_certificate(certificate).public_key():
        raise ConfigError(
            f"{path} is not the key of {certificate}; find the key that was made with it"
        )
    return key


def _ends_too_early(path: Path) -> bool:
    """Return true if the authority's certificate ends before a new certificate of the server."""
    return keys.days_left(keys.read_certificate(path)) <= keys.LIFETIME.days
