"""States as bytes with a digest, so that damage is detected.

A state is a safetensors file. Its header contains one text: metadata about the state, and a digest
of every other byte of the file. It is a single text because safetensors writes several texts in any
order, and equal states must be equal bytes.
"""

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import safetensors.torch

from fedgh.core import wire
from fedgh.core.types import Payload
from fedgh.files import open_regular

Buffer = bytes | memoryview

Metadata = dict[str, Any]
"""Values that describe a state, such as its client, round and run."""

_KEY = "fedgh"
_UNKNOWN = "0" * 32

MAX_STATE = 16 * 2**30
"""Maximum size of a state in bytes."""

MAX_HEADER = 2**24
"""Maximum size of the JSON header in bytes: enough for over a hundred thousand tensors."""


def pack(state: Payload, **metadata: int | str | None) -> bytes:
    """Return a state as bytes, with this metadata and a digest."""
    return b"".join(pieces(state, **metadata))


def pieces(state: Payload, **metadata: int | str | None) -> list[Buffer]:
    """Return the bytes of `pack` in pieces, which saves a copy."""
    content = wire.to_bytes(state, {_KEY: json.dumps({"blake2b": _UNKNOWN, **metadata})})
    start = content.index(_UNKNOWN.encode())
    view, digest = memoryview(content), _digest(content, _UNKNOWN)
    return [view[:start], digest.encode(), view[start + len(digest) :]]


def unpack(content: bytes) -> tuple[Metadata, Payload]:
    """Return the metadata and the tensors of a state; raise ValueError if it is damaged."""
    try:
        state = safetensors.torch.load(content)
    except Exception as error:  # damaged bytes raise any exception in safetensors and torch
        raise ValueError(str(error).partition("\n")[0]) from None
    size = int.from_bytes(content[:8], "little")
    metadata = _metadata(json.loads(content[8 : 8 + size]))
    digest = metadata.pop("blake2b")
    if _digest(content, digest) != digest:
        raise ValueError("it has changed since it was written")
    return metadata, state


def read_metadata(path: Path) -> Metadata:
    """Return the metadata of a state without reading its tensors.

    Raise ValueError if the file is not a state or is truncated.
    """
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
    return _metadata(header)


def _metadata(header: dict[str, Any]) -> Metadata:
    try:
        metadata = json.loads(header["__metadata__"][_KEY])
        if isinstance(metadata["blake2b"], str):
            return dict(metadata)
    except (ValueError, RecursionError, LookupError, TypeError):
        pass
    raise ValueError("its digest is missing")


def _digest(content: bytes, own: str) -> str:
    """Return the digest of all bytes except those of the digest `own` within them."""
    start = content.index(own.encode())
    view = memoryview(content)
    digest = blake2b(view[:start], digest_size=16)
    digest.update(view[start + len(own) :])
    return digest.hexdigest()
