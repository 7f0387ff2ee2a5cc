"""The only source of randomness.

Every draw belongs to a named stream, and (seed, name, client, round) determines a stream. Streams
share no state, so the order in which clients run, the number of processes and a restart do not
change a single bit.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch


def seed_of(seed: int, name: str, client: int = 0, round: int = 0) -> int:
    """Return the 63-bit seed of a stream; streams share a seed only by a hash collision."""
    key = f"{seed}/{name}/{client}/{round}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def stream(seed: int, name: str, client: int = 0, round: int = 0) -> torch.Generator:
    """Return a new torch generator at the start of the named stream."""
    return torch.Generator().manual_seed(seed_of(seed, name, client, round))


def numpy_stream(seed: int, name: str, client: int = 0, round: int = 0) -> np.random.Generator:
    """Return a new numpy generator for the stream, for distributions that torch lacks."""
    return np.random.default_rng(seed_of(seed, name, client, round))


@contextmanager
def isolated(seed: int, name: str, client: int = 0, round: int = 0) -> Iterator[None]:
    """Seed torch's global generator with a stream inside the block; restore it afterwards.

    Layers draw their initial weights, and dropout its masks, from the global generator. Inside the
    block these draws are reproducible too.
    """
    before = torch.get_rng_state()
    _seed_all(seed_of(seed, name, client, round))
    try:
        yield
    finally:
        torch.set_rng_state(before)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def _seed_all(number: int) -> None:
    """Seed the global generators; that of the CPU gets the same state as from `torch.manual_seed`.

    Where there is only a CPU, `torch.manual_seed` would spend most of its time on other devices.
    """
    if _has_accelerator():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)
