"""Messages between a client and the server: serialise, parse, check and measure payloads.

A payload is sent as safetensors. Both sides treat a received message as untrusted: its size is
checked before it is parsed, parsing executes no code, and the tensors are compared with the
method's declaration before the method receives them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedgh.core.types import Payload
from fedgh.errors import WireError


@dataclass(frozen=True)
class Dim:
    """A dimension whose size the sender chooses; equal in all tensors of a message that have it."""

    name: str
    most: int  # the largest size


@dataclass(frozen=True)
class Field:
    """The declaration of a tensor: dtype, shape and allowed values."""

    dtype: torch.dtype
    shape: tuple[int | Dim, ...]
    classes: int | None = None  # the values are distinct class labels below this number
    at_least: float | None = None  # the smallest value allowed
    at_most: float | None = None  # the largest value allowed


Spec = Mapping[str, Field]

_ONE_BYTE = torch.zeros(1, dtype=torch.uint8)

MAX_FRAME = 1024
"""Bytes of a message without its tensors, and of the metadata of each tensor."""


def nbytes(payload: Payload) -> int:
    """Return the bytes of the tensors alone: the communication cost that papers report."""
    return sum(tensor.nbytes for tensor in payload.values())


def to_bytes(payload: Payload, metadata: dict[str, str] | None = None) -> bytes:
    """Return a payload as the bytes of a message, or of a file with metadata."""
    dense = {name: _dense(tensor) for name, tensor in payload.items()}
    # The function of `safetensors.torch` takes several times as long for small tensors.
    content: bytes = safetensors.serialize({n: _position(t) for n, t in dense.items()}, metadata)
    return bytes(content)


def _dense(tensor: Tensor) -> Tensor:
    """Return a tensor whose numbers are in main memory, in their order and as they are read."""
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()


def _position(tensor: Tensor) -> safetensors.TensorSpec:
    memory = tensor if tensor.numel() else _ONE_BYTE  # an empty tensor has no address
    return safetensors.TensorSpec(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tensor.shape,
        data_ptr=memory.data_ptr(),
        data_len=tensor.nbytes,
    )


def from_bytes(message: bytes) -> Payload:
    """Return the payload of a message. Raise WireError if it cannot be parsed."""
    try:
        return safetensors.torch.load(message)
    except Exception as error:  # safetensors and torch raise many types for invalid bytes
        why = str(error).partition("\n")[0]
        raise WireError(f"not a readable message: {why}") from None


def read(message: bytes, specs: Sequence[Spec], max_norm: float = inf) -> Payload:
    """Return the payload of a remote party's message.

    Raise WireError unless it is as one of `specs` declares.
    """
    limit = max(map(max_bytes, specs))
    if len(message) > limit:
        raise WireError(f"a message of {len(message)} bytes; the declaration allows {limit}")
    payload = from_bytes(message)
    check(payload, _matching(payload, specs), max_norm)
    return payload


def check(payload: Payload, spec: Spec, max_norm: float = inf) -> None:
    """Raise WireError unless names, dtypes, shapes, values and norms of rows are as declared."""
    check_shapes(payload, [spec])
    for name, field in spec.items():
        _check_values(name, payload[name], field, max_norm)


def check_shapes(payload: Payload, specs: Sequence[Spec]) -> None:
    """Raise WireError unless names, dtypes and shapes are as one of `specs` declares.

    Values are not checked.
    """
    spec = _matching(payload, specs)
    if payload.keys() != spec.keys():
        raise WireError(f"expected tensors {sorted(spec)}, got {sorted(payload)}")
    sizes: dict[Dim, int] = {}
    for name, field in spec.items():
        tensor = payload[name]
        if tensor.dtype != field.dtype:
            raise WireError(f"'{name}' is {tensor.dtype}, declared {field.dtype}")
        if not _fits(tensor, field, sizes):
            raise WireError(f"'{name}' has shape {tuple(tensor.shape)}, declared {_shape(field)}")


def _matching(payload: Payload, specs: Sequence[Spec]) -> Spec:
    """Return the spec with the names of the payload's tensors; the first spec if none has them."""
    return next((spec for spec in specs if spec.keys() == payload.keys()), specs[0])


def max_bytes(spec: Spec) -> int:
    """Return the size of the largest message that `spec` allows."""
    return MAX_FRAME + sum(
        MAX_FRAME + prod(_max_size(dim) for dim in field.shape) * field.dtype.itemsize
        for field in spec.values()
    )


def _max_size(dim: int | Dim) -> int:
    return dim.most if isinstance(dim, Dim) else dim


def _fits(tensor: Tensor, field: Field, sizes: dict[Dim, int]) -> bool:
    """Return True if the shape is as declared, given the sizes that earlier tensors fixed."""
    return tensor.ndim == len(field.shape) and all(
        size == (sizes.setdefault(dim, size) if isinstance(dim, Dim) else dim)
        and size <= _max_size(dim)
        for dim, size in zip(field.shape, tensor.shape, strict=True)
    )


def _shape(field: Field) -> tuple[int | str, ...]:
    return tuple(
        f"{dim.name} up to {dim.most}" if isinstance(dim, Dim) else dim for dim in field.shape
    )


def _check_values(name: str, tensor: Tensor, field: Field, max_norm: float) -> None:
    if tensor.is_floating_point():
        norm = largest_row_norm(tensor)
        if not norm < inf:
            raise WireError(f"'{name}' has values that are not finite")
        if norm > max_norm:
            raise WireError(f"'{name}' has a row of norm {norm:.4g}, above {max_norm:g}")
    if field.at_least is not None and bool((tensor < field.at_least).any()):
        raise WireError(f"'{name}' has values below {field.at_least:g}")
    if field.at_most is not None and bool((tensor > field.at_most).any()):
        raise WireError(f"'{name}' has values above {field.at_most:g}")
    if field.classes is not None:
        if bool(((tensor < 0) | (tensor >= field.classes)).any()):
            raise WireError(f"'{name}' has labels outside 0..{field.classes - 1}")
        if len(tensor.unique()) != tensor.numel():
            raise WireError(f"'{name}' names a class twice")


def largest_row_norm(tensor: Tensor) -> float:
    """Return the largest L2 norm of a row: the values of a class, a neuron or a filter.

    It is computed in double precision, in which squares of floats do not overflow.
    """
    if tensor.numel() == 0:
        return 0.0
    rows = tensor.flatten(1) if tensor.ndim > 1 else tensor.reshape(1, -1)
    return float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max())
