"""Certificates of the server and key pairs of the clients."""

import secrets
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgh.errors import ConfigError
from fedgh.files import make_folder, read_bytes, write_atomic

CURVE = ec.SECP384R1()
LIFETIME = timedelta(days=825)
"""Time until the server's certificate ends."""

AUTHORITY_LIFETIME = timedelta(days=3650)
"""Time until the authority's certificate ends, which every client has to replace."""

MAX_KEY = 10_000
"""Maximum size in bytes of a public key or a certificate."""


def write_certificates(folder: Path, hosts: list[str]) -> None:
    """Create a certificate authority, and a certificate of the server that it has signed.

    The files of the authority are ca.crt and ca.key, those of the server are server.pem and
    server.key. The server's certificate is valid for `hosts`: names or IP addresses of the server.
    """
    make_folder(folder)
    key = new_key()
    write_private(folder / "ca.key", key)
    write_authority(folder / "ca.crt", key)
    write_server_certificate(folder, key, hosts)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(CURVE)


def write_authority(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the certificate of the authority that has this key."""
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _certificate_builder(AUTHORITY, AUTHORITY, key, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_atomic(path, certificate.public_bytes(serialization.Encoding.PEM))


def write_server_certificate(
    folder: Path, authority: ec.EllipticCurvePrivateKey, hosts: list[str]
) -> None:
    """Write server.key and server.pem: a new key, and its certificate from the authority."""
    key = new_key()
    certificate = (
        _certificate_builder(_name(hosts[0]), AUTHORITY, key, LIFETIME)
        .add_extension(x509.SubjectAlternativeName(map(_alternative_name, hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    write_private(folder / "server.key", key)
    write_atomic(folder / "server.pem", certificate.public_bytes(serialization.Encoding.PEM))


def write_key_pair(private: Path, public: Path) -> None:
    """Create a client's key pair in the form that Flower requires: P-384, OpenSSH."""
    key = new_key()
    write_private(private, key, serialization.PrivateFormat.OpenSSH)
    content = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_atomic(public, content + b"\n")


def read_public_key(path: Path) -> bytes:
    """Read an OpenSSH public key; return it as PEM, as Flower's server reports a node's key.

    Raise ConfigError if the file is not a public key of a kind that Flower accepts.
    """
    return public_pem(load_public_key(path))


def load_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the OpenSSH public key in a file; raise ConfigError as `read_public_key` does."""
    try:
        key = serialization.load_ssh_public_key(read_bytes(path, MAX_KEY, follow=True))
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a readable OpenSSH public key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(
            f"{path}: Flower requires an elliptic-curve key; create one with `ssh-keygen -t ecdsa`"
        )
    return key


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key, in the form of OpenSSH (a client's) or as PEM (the server's).

    Raise ConfigError if the file is not the private key of an elliptic curve.
    """
    try:
        content = read_bytes(path, MAX_KEY, follow=True)
        ssh = b"OPENSSH" in content.partition(b"\n")[0]
        load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
        key = load(content, password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a readable private key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: expected an elliptic-curve key")
    return key


def read_client_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a client's folder; raise ConfigError, with what to do, if it has none."""
    try:
        return read_private_key(folder / "key")
    except ConfigError as error:
        raise ConfigError(
            f"{error}; put it back from a copy, or make a new one and send key.pub to the "
            "operator: ssh-keygen -t ecdsa -b 384 -N '' -f key"
        ) from None


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; raise ConfigError if the file has none."""
    try:
        return x509.load_pem_x509_certificate(read_bytes(path, MAX_KEY, follow=True))
    except OSError as error:
        raise ConfigError(f"{path} is not a readable certificate: {error}") from None
    except ValueError:  # whose text is about the library
        raise ConfigError(
            f"{path} is not a readable certificate; put it back from a copy"
        ) from None


def days_left(certificate: x509.Certificate) -> int:
    """Return the whole days until a certificate ends; negative if it has ended."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def host_names(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses for which a server's certificate is valid."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(hours=1),  # a client's clock may be behind
        not_valid_after=now + lifetime,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


AUTHORITY = _name("fedgh federation")
"""The name of every certificate authority; a client trusts its own one's certificate only."""


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_private(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    format: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,  # noqa: A002
) -> None:
    """Write a private key that only its owner can read."""
    content = key.private_bytes(serialization.Encoding.PEM, format, serialization.NoEncryption())
    write_atomic(path, content, 0o600)


def write_secret(path: Path) -> None:
    """Write a new secret, which the SuperLink and its superexec share."""
    write_atomic(path, secrets.token_hex(32).encode(), 0o600)
