"""The terms of one run of the protocol, on which all its clients must agree."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

from fedgh.errors import WireError

MIN_CLIENTS = 3
"""Fewest clients of a sum: from a sum of two, each learns the upload of the other."""

MAX_CLIENTS = 1000
"""Most clients of a round: messages and time grow with their square."""

Sign = Callable[[bytes], bytes]
"""Function that signs with a client's own key."""

Verify = Callable[[int, bytes, bytes], bool]
"""Function of a client's number, a signature and a message that verifies the signature."""


class ProtocolError(WireError):
    """A party of secure aggregation has broken its rules, or too few clients are left."""


def threshold(asked: int, minimum: int) -> int:
    """Return how many of the clients that were asked must stay until the end of the round.

    With more than two thirds, the server cannot get both shares of a client by telling different
    clients different things, as long as fewer than a third of the clients collude with it.
    """
    return max(2 * asked // 3 + 1, minimum)


@dataclass(frozen=True)
class Terms:
    """The terms of a round; every signature, key and mask belongs to one such set of terms."""

    experiment: str
    start: int  # number of the server's start
    round: int
    settings: str  # digest of the experiment's settings
    download: str  # digest of the download, which is the same for all clients of the round
    asked: tuple[int, ...]  # the clients that the server has asked, in ascending order
    minimum: int  # fewest clients of a sum

    @property
    def threshold(self) -> int:
        """The number of clients that every phase needs, and of shares that recover a secret."""
        return threshold(len(self.asked), self.minimum)

    @cached_property
    def digest(self) -> bytes:
        """The digest of all terms."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()

    def check(self) -> None:
        """Raise ProtocolError unless such a round is possible."""
        if list(self.asked) != sorted(set(self.asked)) or len(self.asked) > MAX_CLIENTS:
            raise ProtocolError("the list of clients is not ascending, or too long")
        if self.round < 1:  # clients note the last round; 0 is none
            raise ProtocolError("the first round is round 1")
        if self.minimum < MIN_CLIENTS or len(self.asked) < self.threshold:
            raise ProtocolError(
                f"{len(self.asked)} clients are asked; a sum needs {max(self.minimum, MIN_CLIENTS)}"
            )


def digest_of(content: object) -> str:
    """Return the digest of plain values, such as settings."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_of_bytes(content: bytes) -> str:
    """Return the digest of bytes, such as a download."""
    return hashlib.sha256(content).hexdigest()
