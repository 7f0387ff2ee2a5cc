"""Questions that a client asks its server before it joins: is it there, is it the right one.

Nothing that the answers contain is trusted or stored. Only the certificate, the status and the date
of an answer are read, and no redirection is followed. The question about the key is a request that
Flower refuses in two different ways, for a known key and for an unknown one; it changes nothing.
"""

import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedgh.errors import RunError
from fedgh.flower._flwr import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    PROTOBUF_MEDIA_TYPE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ActivateNodeRequest,
    sign_message,
)
from fedgh.flower.keys import public_pem

SECONDS = 10.0
"""Maximum number of seconds for a connection or an answer."""

MAX_AHEAD, MAX_BEHIND = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
"""Seconds by which a client's clock may be ahead of the server's or behind it: Flower's limits."""

_WRONG_NAME = (62, 64)
_EXPIRED, _NOT_YET_VALID = 10, 9
"""Codes of OpenSSL."""

REGISTERED, UNKNOWN_KEY, REFUSED_SIGNATURE = 400, 412, 401
"""Statuses of Flower's answers to `KeyQuestion`."""

NO_SUPERLINK = (502, 503, 504)
"""Statuses with which a proxy answers if the SuperLink behind it does not."""


@dataclass(frozen=True)
class KeyAnswer:
    """The server's answer to the question about a key."""

    status: int
    clock_behind: float | None  # seconds by which this machine's clock is behind; None: unknown


def connect(host: str, port: int) -> None:
    """Open a TCP connection and close it; raise RunError if that fails."""
    try:
        socket.create_connection((host, port), SECONDS).close()
    except socket.gaierror:
        raise RunError(f"no machine has the name {host}") from None
    except TimeoutError:
        raise RunError(f"{host}:{port} does not answer within {SECONDS:.0f} s") from None
    except OSError as error:
        raise RunError(f"{host}:{port} cannot be reached ({error.strerror or error})") from None


def certificate_of(host: str, port: int, authority: Path) -> x509.Certificate:
    """Return the server's certificate; raise RunError if a node would not accept it."""
    with (
        _explained(host),
        socket.create_connection((host, port), SECONDS) as plain,
        _trust(authority).wrap_socket(plain, server_hostname=host) as secure,
    ):
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")


def ask_about(key: ec.EllipticCurvePrivateKey, host: str, port: int, authority: Path) -> KeyAnswer:
    """Ask if the server has registered this key, with a request that it refuses in any case.

    The request activates a node with an impossible interval. Flower looks for the key first.
    """
    public = public_pem(key.public_key())
    signed_at = datetime.now(UTC).isoformat()
    headers = {
        "content-type": PROTOBUF_MEDIA_TYPE,
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
        TIMESTAMP_HEADER: signed_at,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, signed_at.encode())).decode(),
    }
    body = ActivateNodeRequest(public_key=public, heartbeat_interval=0).SerializeToString()
    connection = HTTPSConnection(host, port, timeout=SECONDS, context=_trust(authority))
    with _explained(host):
        try:
            connection.connect()
            before = time.time()
            connection.request("POST", "/v1/fleet/activate-node", body, headers)
            answer = connection.getresponse()
            return KeyAnswer(answer.status, _clock_behind(answer, (before + time.time()) / 2))
        finally:
            connection.close()


def _clock_behind(answer: HTTPResponse, here: float) -> float | None:
    """Return the seconds by which this clock is behind the date of an answer; its unit is 1 s."""
    try:
        there = parsedate_to_datetime(answer.headers["Date"])
        return there.timestamp() + 0.5 - here  # the date is cut off, not rounded
    except (TypeError, ValueError, OverflowError):
        return None


def _trust(authority: Path) -> ssl.SSLContext:
    """Return the settings of TLS with which a node connects."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    return context


@contextmanager
def _explained(host: str) -> Iterator[None]:
    """Convert errors of TLS and HTTP to a RunError with the cause and what to do next."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise RunError(_why_refused(error.verify_code, host)) from None
    except ssl.SSLError as error:
        raise RunError(
            f"the server does not speak TLS as expected ({error.reason}); check the address and "
            "the port"
        ) from None
    except (OSError, HTTPException, ValueError) as error:
        raise RunError(
            f"the server ends the connection without an answer ({type(error).__name__}); ask the "
            "operator if its proxy and SuperLink run"
        ) from None


def _why_refused(code: int, host: str) -> str:
    """Return why a certificate was refused, for a code of OpenSSL."""
    if code in _WRONG_NAME:
        return (
            f"the server's certificate is not for the name {host}; use the name that the operator "
            f"gave to `fedgh flower init --host`, or ask for a certificate with this name "
            f"(fedgh flower renew --host {host})"
        )
    if code == _EXPIRED:
        return (
            "the server's certificate or ca.crt has ended; the operator can renew them "
            "(fedgh flower renew)"
        )
    if code == _NOT_YET_VALID:
        return "the server's certificate is not valid yet: this machine's clock is wrong; use NTP"
    return (
        "the server's certificate is not signed by the authority in ca.crt; ask the operator for "
        "the present ca.crt"
    )
