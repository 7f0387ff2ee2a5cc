"""A second, slow implementation of the validity checks, which uses no code of the package."""

import json
import math
import struct
from typing import Any

import torch

from fedgh.core import wire
from fedgh.core.types import Payload

MAX_REASON = 500

LETTERS = {
    "F32": (torch.float32, "f"),
    "F64": (torch.float64, "d"),
    "I32": (torch.int32, "i"),
    "I64": (torch.int64, "q"),
    "U8": (torch.uint8, "B"),
}


def header(message: bytes) -> dict[str, Any]:
    """Return the safetensors header of a message."""
    length = struct.unpack_from("<Q", message)[0]
    entries: dict[str, Any] = json.loads(message[8 : 8 + length])
    entries.pop("__metadata__", None)
    return entries


def parse(message: bytes) -> dict[str, tuple[torch.dtype, list[int], list[float]]]:
    """Return dtype, shape and values of each tensor; only for dtypes that methods use."""
    body = message[8 + struct.unpack_from("<Q", message)[0] :]
    out = {}
    for name, entry in header(message).items():
        dtype, letter = LETTERS[entry["dtype"]]
        start, stop = entry["data_offsets"]
        values = struct.unpack(f"<{math.prod(entry['shape'])}{letter}", body[start:stop])
        out[name] = (dtype, entry["shape"], list(values))
    return out


def equals(payload: Payload, message: bytes) -> bool:
    """Return true if the payload equals the tensors of the message, bit for bit."""
    read = {
        name: (tensor.dtype, list(tensor.shape), tensor.flatten().tolist())
        for name, tensor in payload.items()
    }
    return read == parse(message)


def valid(payload: Payload, spec: wire.Spec, max_norm: float) -> bool:
    """Return true if a payload matches its declaration."""
    if set(payload) != set(spec):
        return False
    sizes: dict[str, set[int]] = {}
    for name, field in spec.items():
        tensor = payload[name]
        if tensor.dtype is not field.dtype or len(tensor.shape) != len(field.shape):
            return False
        for dim, size in zip(field.shape, tensor.shape, strict=True):
            if isinstance(dim, wire.Dim):
                sizes.setdefault(dim.name, set()).add(size)
            if size > dim.most if isinstance(dim, wire.Dim) else size != dim:
                return False
        values = tensor.flatten().tolist()
        if any(not math.isfinite(value) for value in values):
            return False
        if field.at_least is not None and any(value < field.at_least for value in values):
            return False
        if field.at_most is not None and any(value > field.at_most for value in values):
            return False
        if field.dtype.is_floating_point and _largest_norm(tensor) > max_norm:
            return False
        if field.classes is not None and (
            any(value not in range(field.classes) for value in values)
            or len(set(values)) < len(values)
        ):
            return False
    return all(len(of_dim) == 1 for of_dim in sizes.values())


def _largest_norm(tensor: torch.Tensor) -> float:
    """Return the largest norm of a row of a matrix, a filter of a convolution, or a vector."""
    rows = list(tensor) if tensor.ndim > 1 else [tensor]
    return max((math.hypot(*row.flatten().tolist()) for row in rows), default=0.0)


def harmless(reason: str) -> bool:
    """Return true if a reason is one short line of printable characters."""
    return 0 < len(reason) <= MAX_REASON and reason.isprintable()
