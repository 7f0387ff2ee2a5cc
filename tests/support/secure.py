"""One round of secure aggregation without an engine, with clients that drop out in any phase."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedgh.secure.client import MaskingClient, Memory, from_json, to_json
from fedgh.secure.primitives import Numbers
from fedgh.secure.server import UnmaskingServer
from fedgh.secure.signatures import is_signed, sign
from fedgh.secure.step import PHASES, Phase, Step
from fedgh.secure.terms import Terms

Lie = Callable[[Phase, int, Step], Step]
"""Function of a phase, a client and the honest message for it that returns what it receives."""


@cache
def registered_key(client: int) -> ec.EllipticCurvePrivateKey:
    """The key with which a client is registered."""
    return ec.generate_private_key(ec.SECP384R1())


@lru_cache(2**16)
def verify(client: int, signature: bytes, message: bytes) -> bool:
    return is_signed(registered_key(client).public_key(), signature, message)


def some_terms(clients: int, round: int = 1, minimum: int = 3) -> Terms:
    asked = tuple(range(0, 2 * clients, 2))  # their numbers need not be adjacent
    return Terms("e", 1, round, "0" * 64, "1" * 64, asked, minimum)


def a_client(number: int, terms: Terms, least: int = 0) -> MaskingClient:
    return MaskingClient(
        number, Memory(terms), lambda text: sign(registered_key(number), text), verify, least
    )


class PlayedRound:
    """A round with honest clients; between two messages each client is written and read again."""

    def __init__(
        self,
        inputs: Mapping[int, Numbers],
        terms: Terms,
        absent: Mapping[Phase, set[int]] | None = None,
        lie: Lie = lambda phase, client, step: step,
    ) -> None:
        self.terms = terms
        self.inputs = inputs
        self.absent = absent or {}
        self.lie = lie
        self.server = UnmaskingServer(terms, verify)
        self.clients = {number: a_client(number, terms) for number in terms.asked}
        self.uploads: dict[int, Numbers] = {}  # masked, as the server receives them
        self.answers: dict[tuple[Phase, int], str] = {}

    @property
    def length(self) -> int:
        return len(next(iter(self.inputs.values())))

    def play(self, until: Phase = "unmask") -> None:
        """Play the phases up to `until`."""
        for phase in PHASES[: PHASES.index(until) + 1]:
            if phase == "consistency":
                self.server.close_uploads(self.uploads)
            for number, step in self.server.steps(phase).items():
                if number not in self.absent.get(phase, set()):
                    self.ask(phase, number, self.lie(phase, number, step))

    def ask(self, phase: Phase, number: int, step: Step) -> None:
        """Send a message to a client, and pass its answer to the server."""
        client = self.clients[number]
        client.memory = from_json(to_json(client.memory))
        if phase == "upload":
            self.uploads[number] = client.masked(step, self.inputs[number])
        else:
            self.answers[phase, number] = client.answer(step)
            self.server.add(phase, number, self.answers[phase, number])

    def result(self) -> Numbers:
        """Play all phases, and return the sum."""
        self.play()
        return self.total()

    def total(self) -> Numbers:
        """Return the sum of the uploads without masks."""
        masked = sum(self.uploads.values(), np.zeros(self.length, dtype=np.uint64))
        return masked - self.server.masks(self.length)


def inputs_for(terms: Terms, length: int = 5, seed: int = 0) -> dict[int, Numbers]:
    """Return random numbers for each client, of the whole range."""
    rng = np.random.default_rng(seed)
    return {number: rng.integers(0, 2**64, size=length, dtype=np.uint64) for number in terms.asked}
