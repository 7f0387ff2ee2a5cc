"""What releases cost, by dp-accounting: from ε to a noise multiplier and back.

A release with noise multiplier z is a Gaussian mechanism with sensitivity 1 and standard deviation
z. Several of them, each chosen after the ones before were seen, are together as private as one with
1/σ² = Σ 1/z² (Dong, Roth and Su 2019), whose ε is known exactly (Balle and Wang 2018). So Σ 1/z²,
`spent` below, is all that need be remembered. Nothing is gained from a client being drawn by
chance: the server, against whom this protects, knows who takes part.
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
    """The noise multiplier with which so many releases cost ε in all."""
    _need_accounting()
    from dp_accounting import get_sigma_gaussian  # an extra, and slow to import

    return float(get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


@lru_cache
def epsilon_of(spent: float, delta: float) -> float:
    """The ε of releases with Σ 1/z² = `spent`."""
    _need_accounting()
    from dp_accounting import get_epsilon_gaussian  # an extra, and slow to import

    return float(get_epsilon_gaussian(1 / math.sqrt(spent), delta)) if spent else 0.0


def _need_accounting() -> None:
    need("privacy", "privacy")


class Account:
    """What each client of a run has spent: it pays for every round in which it was asked.

    With `once` it pays for the first only: asked again, it sends the same numbers.
    """

    def __init__(
        self, privacy: Privacy, epsilon: float, delta: float, clients: int, *, once: bool = False
    ) -> None:
        self._privacy = privacy
        self._promised = epsilon
        self._delta = delta
        self._once = once
        self._asked = Counter(dict.fromkeys(range(clients), 0))

    def check(self, participants: Iterable[int]) -> None:
        """Raise RunError when one more round with these would cost more than was promised."""
        for client in participants:
            epsilon = self._epsilon(self._asked[client] + 1)
            if epsilon > self._promised * (1 + ROUNDING):
                raise RunError(
                    f"client {client} was asked for {self._asked[client]} uploads, some of them in "
                    f"rounds that were lost; one more would bring its ε to {epsilon:.4g}, above "
                    f"privacy.epsilon = {self._promised:g}. The run ends here: use the models of "
                    "its last completed round"
                )

    def ask(self, participants: Iterable[int]) -> None:
        """One more round, with these."""
        self._asked.update(participants)

    def at_least(self, asked: Mapping[int, int]) -> None:
        """Clients were asked so often, whatever the rounds that are there say."""
        for client, known in self._asked.items():
            self._asked[client] = max(known, asked.get(client, 0))

    @property
    def highest(self) -> float:
        """The ε of who has spent most."""
        return self._epsilon(max(self._asked.values()))

    @property
    def epsilons(self) -> list[float]:
        """The ε of every client."""
        return [self._epsilon(asked) for asked in self._asked.values()]

    def _epsilon(self, asked: int) -> float:
        releases = min(asked, 1) if self._once else asked
        return epsilon_of(releases / self._privacy.noise_multiplier**2, self._delta)
