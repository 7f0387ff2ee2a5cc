"""Segments: files with the states of many clients, each of which can be read by itself.

A segment has sealed states one after the other, then their index, also sealed, then the length of
the index in eight bytes. The index has a row for each state: client, round, first byte, end.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fedgh.files import PartFile, open_regular
from fedgh.runs.sealed import pack, unpack

MAX_INDEX = 2**26
"""Maximum size of an index in bytes: enough for two million clients."""

_PIECE = 2**24
"""Bytes that are read at a time."""

_LENGTH = 8
"""Bytes of the length at the end of a segment."""


@dataclass(frozen=True, slots=True)
class Span:
    """The position of a client's state in a file, and the round of the state."""

    path: Path
    round: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The size of the state in bytes."""
        return self.end - self.start


Index = dict[int, Span]
"""The position of each client's state."""


def read_span(span: Span) -> Iterator[bytes]:
    """Yield the bytes of a state in pieces."""
    with open_regular(span.path) as file:
        file.seek(span.start)
        for start in range(span.start, span.end, _PIECE):
            yield file.read(min(_PIECE, span.end - start))


def read_index(path: Path, **identity: int | str) -> Index:
    """Return the index of a segment; raise ValueError if it is damaged or has another identity."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - _LENGTH, 0))
        length = int.from_bytes(file.read(_LENGTH), "little")
        end = size - _LENGTH - length
        if length > MAX_INDEX or end < 0:
            raise ValueError("it was cut short, or has other content than states")
        file.seek(end)
        metadata, tensors = unpack(file.read(length))
    if metadata != identity:
        raise ValueError("its states are of another run or round")
    rows = tensors.get("states", torch.empty(0))
    if rows.dtype != torch.int64 or rows.ndim != 2 or rows.shape[1] != 4 or rows.lt(0).any():
        raise ValueError("its index is not one")
    index: Index = {}
    for client, round, start, stop in rows.tolist():
        if client in index or not start <= stop <= end:
            raise ValueError("its index is not one")
        index[client] = Span(path, round, start, stop)
    if sum(span.size for span in index.values()) > end:
        raise ValueError("its index is not one")  # states overlap, and copies would take more space
    return index


def publish(file: PartFile, name: str, index: Index, **identity: int | str) -> Index:
    """Add the index to a file of states and give the file its name; return its new index.

    The states are durable, and their file after `sync_folder`.
    """
    rows = [(client, s.round, s.start, s.end) for client, s in index.items()]
    content = pack({"states": torch.tensor(rows, dtype=torch.int64)}, **identity)
    file.write(content)
    file.write(len(content).to_bytes(_LENGTH, "little"))
    path = file.publish(name)
    return {client: Span(path, s.round, s.start, s.end) for client, s in index.items()}
