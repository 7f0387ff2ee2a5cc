"""Shamir's sharing, against brute force over all polynomials of a small field."""

import secrets
from contextlib import suppress
from itertools import combinations

import pytest

from fedgh.secure import shamir
from fedgh.secure.shamir import PRIME, Recovery, split


def test_the_modulus_is_prime() -> None:
    """Miller and Rabin's test with 64 random bases; a composite passes with chance 4**-64."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(64):
        power = pow(secrets.randbelow(PRIME - 3) + 2, odd, PRIME)
        squares = [power := power if k == 0 else power * power % PRIME for k in range(twos)]
        assert squares[0] == 1 or PRIME - 1 in squares
    smaller = (2**256 + k for k in range(1, 297, 2))
    assert all(pow(3, number - 1, number) != 1 for number in smaller), "it is the smallest"


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (2, 3), (3, 5), (5, 7)])
def test_any_holders_as_many_as_the_threshold_recover_the_secret(
    threshold: int, holders: int
) -> None:
    secret = secrets.token_bytes(32)
    shares = split(secret, threshold, range(0, 3 * holders, 3))
    for some in combinations(shares, threshold):
        assert Recovery(some).secret(shares) == secret


def test_extreme_secrets_are_recovered() -> None:
    for secret in (bytes(32), b"\xff" * 32):
        shares = split(secret, 3, [0, 5, 999])
        assert Recovery([0, 5, 999]).secret(shares) == secret


def test_shares_that_do_not_fit_are_noticed_or_give_another_secret() -> None:
    shares = split(b"s" * 32, 2, [0, 1])
    false = {**shares, 0: (shares[0] + 1) % PRIME}
    with suppress(ValueError):
        assert Recovery([0, 1]).secret(false) != b"s" * 32


def test_fewer_shares_than_the_threshold_fit_every_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a field of 13 numbers: each pair of shares occurs equally often for each secret."""
    prime = 13
    monkeypatch.setattr(shamir, "PRIME", prime)
    seen: dict[int, list[tuple[int, int]]] = {}
    for secret in range(prime):
        for a in range(prime):
            for b in range(prime):
                draws = iter([a, b])
                monkeypatch.setattr(secrets, "randbelow", lambda _, draws=draws: next(draws))
                shares = split(secret.to_bytes(32, "big"), 3, [0, 1, 2])
                seen.setdefault(secret, []).append((shares[0], shares[1]))
    for secret in range(prime):
        assert sorted(seen[secret]) == [(x, y) for x in range(prime) for y in range(prime)]
