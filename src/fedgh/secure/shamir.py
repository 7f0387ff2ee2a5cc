"""Shamir's secret sharing of 32 bytes, over the integers modulo a prime.

A share is the value of a random polynomial whose constant term is the secret; holder k has the
value at k + 1. Fewer shares than the threshold reveal nothing about the secret.
"""

import secrets
from collections.abc import Mapping, Sequence
from math import prod

PRIME = 2**256 + 297  # the smallest prime above 2**256
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, int]:
    """Return the share of each holder; any `threshold` of them determine the secret."""
    assert len(secret) == SECRET_BYTES
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in coefficients:
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value
    return shares


class Recovery:
    """Recovery of secrets from the shares of the same holders, as many as the threshold."""

    def __init__(self, holders: Sequence[int]) -> None:
        points = [holder + 1 for holder in holders]
        self._weights = {
            point - 1: prod(-other for other in points if other != point)
            * pow(prod(point - other for other in points if other != point), -1, PRIME)
            % PRIME
            for point in points
        }

    def secret(self, shares: Mapping[int, int]) -> bytes:
        """Return the secret; raise ValueError if no secret has such shares."""
        value = sum(weight * shares[holder] for holder, weight in self._weights.items()) % PRIME
        if value >= 2 ** (8 * SECRET_BYTES):
            raise ValueError("the shares do not fit together")
        return value.to_bytes(SECRET_BYTES, "big")
