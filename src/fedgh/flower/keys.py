"""Certificates of the server and key pairs of the clients."""

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

MAX_KEY = 10_000
"""Maximum size in bytes of a public key or a certificate."""


def write_certificates(folder: Path, hosts: list[str]) -> None:
    """Create a certificate authority, and a certificate of the server that it has signed.

    The files of the authority are ca.crt and ca.key, those of the server are server.pem and
    server.key. The server's certificate is valid for `hosts`: names or IP addresses of the server.
    """
    make_folder(folder)
    ca_key, server_key = ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)
    ca_name = _name("fedgh federation")
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
    ca_certificate = (
        _certificate_builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    server_certificate = (
        _certificate_builder(_name(hosts[0]), ca_name, server_key)
        .add_extension(x509.SubjectAlternativeName(map(_alternative_name, hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    _write_private(folder / "ca.key", ca_key)
    _write_private(folder / "server.key", server_key)
    for name, certificate in (("ca.crt", ca_certificate), ("server.pem", server_certificate)):
        write_atomic(folder / name, certificate.public_bytes(serialization.Encoding.PEM))


def write_key_pair(private: Path, public: Path) -> None:
    """Create a client's key pair in the form that Flower requires: P-384, OpenSSH."""
    key = ec.generate_private_key(CURVE)
    _write_private(private, key, serialization.PrivateFormat.OpenSSH)
    content = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_atomic(public, content + b"\n")


def read_public_key(path: Path) -> bytes:
    """Read an OpenSSH public key; return it as PEM, as Flower's server reports a node's key.

    Raise ConfigError if the file is not a public key of a kind that Flower accepts.
    """
    try:
        key = serialization.load_ssh_public_key(read_bytes(path, MAX_KEY, follow=True))
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a readable OpenSSH public key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(
            f"{path}: Flower requires an elliptic-curve key; create one with `ssh-keygen -t ecdsa`"
        )
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(hours=1),  # a client's clock may be behind
        not_valid_after=now + LIFETIME,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    format: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,  # noqa: A002
) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, format, serialization.NoEncryption())
    write_atomic(path, content, 0o600)
