"""Privacy accounting with dp-accounting: conversion between ε and noise multipliers.

A release with noise multiplier z is a Gaussian mechanism with sensitivity 1 and standard deviation
z. Several releases, also if each depends on the results of earlier ones, are together as private as
one with 1/σ² = Σ 1/z² (Dong, Roth and Su 2019), whose ε is known exactly (Balle and Wang 2018). So
the sum Σ 1/z², `spent` below, is the whole account. Random selection of clients gives no additional
privacy: the protection is against the server, which knows the participants.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from fedgh.errors import RunError
from fedgh.extras import need
from fedgh.privacy.mechanism import Privacy

ROUNDING = 1e-9
"""Relative tolerance when ε is compared with a bound, so that rounding does not end a run."""


@lru_cache
def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the noise multiplier with which this number of releases costs ε in total."""
    _need_accounting()
    from dp_accounting import get_sigma_gaussian  # optional dependency, slow to import

    return float(get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


@lru_cache
def epsilon_of(spent: float, delta: float) -> float:
    """Return the ε of releases with Σ 1/z² = `spent`."""
    _need_accounting()
    from dp_accounting import get_epsilon_gaussian  # optional dependency, slow to import

    return float(get_epsilon_gaussian(1 / math.sqrt(spent), delta)) if spent else 0.0


def _need_accounting() -> None:
    need("privacy", "privacy")


class Account:
    """The ε that each client of a run has spent: one release per upload that was requested.

    With `once` only the first request costs privacy: later ones are answered with the same numbers.
    """

    def __init__(
        self, privacy: Privacy, epsilon: float, delta: float, clients: int, *, once: bool = False
    ) -> None:
        self._privacy = privacy
        self._max_epsilon = epsilon
        self._delta = delta
        self._once = once
        self._requests = Counter(dict.fromkeys(range(clients), 0))

    def check(self, participants: Iterable[int]) -> None:
        """Raise RunError if one more round with these clients would exceed privacy.epsilon."""
        for client in participants:
            epsilon = self._epsilon(self._requests[client] + 1)
            if epsilon > self._max_epsilon * (1 + ROUNDING):
                raise RunError(
                    f"client {client}: {self._requests[client]} uploads were requested, some in "
                    f"rounds that were lost; one more would bring its ε to {epsilon:.4g}, above "
                    f"privacy.epsilon = {self._max_epsilon:g}. The run ends here; use the models "
                    "of its last completed round"
                )

    def count_requests(self, participants: Iterable[int]) -> None:
        """Count one more request to each of these clients."""
        self._requests.update(participants)

    def raise_counts(self, requests: Mapping[int, int]) -> None:
        """Raise each client's count to `requests`, which includes requests in lost rounds."""
        for client, count in self._requests.items():
            self._requests[client] = max(count, requests.get(client, 0))

    @property
    def highest_epsilon(self) -> float:
        """Highest ε of all clients."""
        return self._epsilon(max(self._requests.values()))

    @property
    def epsilons(self) -> list[float]:
        """ε of every client, in order."""
        return [self._epsilon(requests) for requests in self._requests.values()]

    def _epsilon(self, requests: int) -> float:
        releases = min(requests, 1) if self._once else requests
        return epsilon_of(releases / self._privacy.noise_multiplier**2, self._delta)
