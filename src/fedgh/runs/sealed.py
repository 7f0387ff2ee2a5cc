"""States as bytes that are found out when they have been damaged.

A state is a safetensors file. Its header carries one text: what the state is of, and a digest of
every other byte of the file. (One text, because safetensors writes several in any order, and equal
states should be equal bytes.)
"""

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import safetensors.torch

from fedgh.core.types import Payload
from fedgh.files import open_regular

About = dict[str, Any]

_KEY = "fedgh"
_UNKNOWN = "0" * 32

MAX_STATE = 16 * 2**30
"""Bytes of a state that is read."""

MAX_HEADER = 2**24
"""Bytes of the JSON in front of the tensors: a hundred for each of some hundred thousand."""


def pack(state: Payload, **about: int | str | None) -> bytes:
    """A state, with a few words that say what it is of."""

    def save(digest: str) -> bytes:
        return safetensors.torch.save(state, {_KEY: json.dumps({"blake2b": digest, **about})})

    return save(_digest(save(_UNKNOWN), _UNKNOWN))  # to serialise it twice is faster than to copy


def unpack(content: bytes) -> tuple[About, Payload]:
    """Return what a state is of, and its tensors; ValueError when it has changed since."""
    try:
        state = safetensors.torch.load(content)
    except Exception as error:  # whatever safetensors and torch make of such bytes
        raise ValueError(str(error).partition("\n")[0]) from None
    size = int.from_bytes(content[:8], "little")
    about = _about(json.loads(content[8 : 8 + size]))
    digest = about.pop("blake2b")
    if _digest(content, digest) != digest:
        raise ValueError("it has changed since it was written")
    return about, state


def read_about(path: Path) -> About:
    """What the state in a file is of, without reading it all; ValueError if it was cut short."""
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_HEADER:
            raise ValueError("it is not a state")
        try:
            header = json.loads(file.read(size))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
            expected = 8 + size + max(ends, default=0)
        except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
            raise ValueError("it is not a state") from None
        if os.fstat(file.fileno()).st_size != expected:
            raise ValueError("it was cut short")
    return _about(header)


def _about(header: dict[str, Any]) -> About:
    try:
        about = json.loads(header["__metadata__"][_KEY])
        if isinstance(about["blake2b"], str):
            return dict(about)
    except (ValueError, RecursionError, LookupError, TypeError):
        pass
    raise ValueError("its digest is missing")


def _digest(content: bytes, own: str) -> str:
    """Of all bytes but those of the digest that is in it."""
    place = content.index(own.encode())
    view = memoryview(content)
    digest = blake2b(view[:place], digest_size=16)
    digest.update(view[place + len(own) :])
    return digest.hexdigest()
