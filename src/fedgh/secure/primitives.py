"""The cryptographic primitives of the protocol, all from the library `cryptography`.

Key agreement is X25519, key derivation HKDF-SHA256, encryption ChaCha20-Poly1305; masks are the
key stream of AES-256 in counter mode. Signatures are in `signatures`.
"""

import secrets

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedgh.secure.terms import ProtocolError

Numbers = NDArray[np.uint64]
"""A vector of numbers modulo 2**64."""

KEY_BYTES = 32
_NONCE_BYTES = 12
_NUMBER_BYTES = 8
_CHUNK = 2**14  # numbers that are masked at a time, so that they stay in the processor's cache


def new_key() -> bytes:
    """Return a new private key for key agreement."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: str, terms: bytes) -> bytes:
    """Return the key for one purpose that two parties share; raise ProtocolError for a bad key."""
    try:
        other = X25519PublicKey.from_public_bytes(public)
        secret = X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError:  # a point of low order
        raise ProtocolError("a public key cannot be used") from None
    return derive(secret, purpose, terms)


def derive(secret: bytes, purpose: str, terms: bytes) -> bytes:
    """Return a key for one purpose and one set of terms."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=terms, info=purpose.encode()).derive(secret)


def encrypt(key: bytes, plaintext: bytes, terms: bytes) -> bytes:
    """Return authenticated ciphertext that belongs to these terms."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, terms)


def decrypt(key: bytes, ciphertext: bytes, terms: bytes) -> bytes:
    """Return the plaintext; raise ProtocolError if the ciphertext was not made with this key."""
    nonce, rest = ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, rest, terms)
    except (InvalidTag, ValueError):
        raise ProtocolError("encrypted shares cannot be decrypted") from None


def add_self_mask(total: Numbers, seed: bytes, terms: bytes) -> None:
    """Add the mask of a client's own seed to `total`."""
    _add_mask(total, derive(seed, "self mask", terms))


def add_pair_mask(
    total: Numbers, client: int, other: int, private: bytes, public: bytes, terms: bytes
) -> None:
    """Add to `total` what `client` adds to its upload for `other`: their mask, or its negative.

    The two keys are the private key of one of them and the public key of the other one. The mask
    also depends on both numbers: X25519 accepts several encodings of a public key, and by another
    encoding of an honest client's key a malicious client would have that client's masks.
    """
    purpose = f"pair mask of {min(client, other)} and {max(client, other)}"
    _add_mask(total, agree(private, public, purpose, terms), negative=client < other)


def _add_mask(total: Numbers, key: bytes, *, negative: bool = False) -> None:
    """Add pseudorandom numbers. A key is used for one mask only, so the counter starts at 0."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(_NUMBER_BYTES * _CHUNK)
    for start in range(0, len(total), _CHUNK):
        part = total[start : start + _CHUNK]
        mask = np.frombuffer(stream.update(zeros[: _NUMBER_BYTES * len(part)]), dtype="<u8")
        if negative:
            part -= mask
        else:
            part += mask
