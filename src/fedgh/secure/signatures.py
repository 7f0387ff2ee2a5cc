"""ECDSA signatures with the keys by which clients are registered."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

_ALGORITHM = ec.ECDSA(hashes.SHA384())


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """Return the signature of a message."""
    return key.sign(message, _ALGORITHM)


def is_signed(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes) -> bool:
    """Return True if the signature was made for this message with the private part of the key."""
    try:
        key.verify(signature, message, _ALGORITHM)
    except InvalidSignature:
        return False
    return True
