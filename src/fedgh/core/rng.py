"""The only source of randomness.

Every draw belongs to a named stream, and a stream is fixed by (seed, name, client, round). No
state is carried from one to the next, so the order in which clients run, the number of
processes and a restart in the middle cannot change a single bit.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_of(seed: int, name: str, client: int = 0, round: int = 0) -> int:
    """A 63-bit number that two different streams share only by an accident of hashing."""
    key = f"{seed}/{name}/{client}/{round}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def stream(seed: int, name: str, client: int = 0, round: int = 0) -> torch.Generator:
    """A fresh torch generator at the start of the named stream."""
    return torch.Generator().manual_seed(seed_of(seed, name, client, round))


def numpy_stream(seed: int, name: str, client: int = 0, round: int = 0) -> np.random.Generator:
    """The same for numpy, whose distributions torch lacks."""
    return np.random.default_rng(seed_of(seed, name, client, round))


@contextmanager
def isolated(seed: int, name: str, client: int = 0, round: int = 0) -> Iterator[None]:
    """Run a block on its own stream of torch's global generator, and leave that as it was.

    Layers draw their initial weights and dropout its masks from the global generator; inside
    this block those draws are as reproducible as any other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, name, client, round))
        yield
