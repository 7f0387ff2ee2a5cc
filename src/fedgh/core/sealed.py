"""States as bytes that are found out when they have been damaged.

A state is a safetensors file. Its header carries one text: what the state is of, and a digest of
every other byte of the file. (One text, because safetensors writes several in any order, and equal
states should be equal bytes.)
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from fedgh.core.types import Payload

About = dict[str, Any]

_KEY = "fedgh"
_UNKNOWN = "0" * 32


def pack(state: Payload, **about: int | str | None) -> bytes:
    """A state, with a few words that say what it is of."""

    def save(digest: str) -> bytes:
        return safetensors.torch.save(state, {_KEY: json.dumps({"blake2b": digest, **about})})

    return save(_digest(save(_UNKNOWN), _UNKNOWN))  # to serialise it twice is faster than to copy


def unpack(content: bytes) -> tuple[About, Payload]:
    """What a state is of, and its tensors; ValueError when it is not as it was packed.

    States from before there were digests are taken as they are.
    """
    try:
        state = safetensors.torch.load(content)
    except Exception as error:  # whatever safetensors and torch make of such bytes
        raise ValueError(str(error).partition("\n")[0]) from None
    size = int.from_bytes(content[:8], "little")
    about = _about(json.loads(content[8 : 8 + size]).get("__metadata__", {}))
    digest = about.pop("blake2b", None)
    if digest is not None and _digest(content, digest) != digest:
        raise ValueError("it has changed since it was written")
    return about, state


def read_about(path: Path) -> About:
    """What the state in a file is of, without reading it all; ValueError if it was cut short."""
    try:
        with safe_open(path, "pt") as file:
            return _about(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _about(metadata: dict[str, str]) -> About:
    if _KEY not in metadata:
        return dict(metadata)
    about = json.loads(metadata[_KEY])
    if not (isinstance(about, dict) and isinstance(about.get("blake2b"), str)):
        raise ValueError("its digest is missing")
    return about


def _digest(content: bytes, own: str) -> str:
    """Of all bytes but those of the digest that is in it."""
    place = content.index(own.encode())
    view = memoryview(content)
    digest = blake2b(view[:place], digest_size=16)
    digest.update(view[place + len(own) :])
    return digest.hexdigest()
