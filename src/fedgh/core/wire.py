"""What may cross between a client and the server, and what it costs.

A payload travels as safetensors. What arrives is untrusted, whichever side it comes from: it is
measured before it is parsed, parsed without executing anything, and compared with what the method
declared before the method sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import safetensors.torch
import torch
from torch import Tensor

from fedgh.core.types import Payload
from fedgh.errors import WireError


@dataclass(frozen=True)
class Dim:
    """A dimension whose size the sender chooses, the same wherever its name stands."""

    name: str
    most: int


@dataclass(frozen=True)
class Field:
    """One declared tensor."""

    dtype: torch.dtype
    shape: tuple[int | Dim, ...]
    classes: int | None = None  # the values are distinct class labels below this number
    at_least: float | None = None  # the smallest value allowed
    at_most: float | None = None  # the largest


Spec = Mapping[str, Field]

FRAME = 1024
"""Bytes, at most, of a message without its tensors, and again for the entry of each of them."""


def nbytes(payload: Payload) -> int:
    """The bytes of the tensors themselves: the communication cost that papers count."""
    return sum(tensor.nbytes for tensor in payload.values())


def to_bytes(payload: Payload) -> bytes:
    """The message as it travels."""
    return safetensors.torch.save({name: t.contiguous() for name, t in payload.items()})


def from_bytes(message: bytes) -> Payload:
    """The payload of a message; WireError when it is not one."""
    try:
        return safetensors.torch.load(message)
    except Exception as error:  # whatever safetensors and torch make of such bytes
        why = str(error).partition("\n")[0]
        raise WireError(f"not a readable message: {why}") from None


def read(message: bytes, specs: Sequence[Spec], max_norm: float = inf) -> Payload:
    """The payload of another party's message, which has to be as one of `specs` declares."""
    most = max(map(max_bytes, specs))
    if len(message) > most:
        raise WireError(f"a message of {len(message)} bytes; what was declared takes {most}")
    payload = from_bytes(message)
    check(payload, _meant(payload, specs), max_norm)
    return payload


def check(payload: Payload, spec: Spec, max_norm: float = inf) -> None:
    """Accept exactly what was declared: names, dtypes, shapes, values, labels, norms of rows."""
    check_shapes(payload, [spec])
    for name, field in spec.items():
        _check_values(name, payload[name], field, max_norm)


def check_shapes(payload: Payload, specs: Sequence[Spec]) -> None:
    """Accept names, dtypes and shapes as one of `specs` declares; look at no value."""
    spec = _meant(payload, specs)
    if payload.keys() != spec.keys():
        raise WireError(f"expected tensors {sorted(spec)}, got {sorted(payload)}")
    sizes: dict[Dim, int] = {}
    for name, field in spec.items():
        tensor = payload[name]
        if tensor.dtype != field.dtype:
            raise WireError(f"'{name}' is {tensor.dtype}, declared {field.dtype}")
        if not _fits(tensor, field, sizes):
            raise WireError(f"'{name}' has shape {tuple(tensor.shape)}, declared {_shape(field)}")


def _meant(payload: Payload, specs: Sequence[Spec]) -> Spec:
    """The spec with the names of the payload's tensors; the first where none has them."""
    return next((spec for spec in specs if spec.keys() == payload.keys()), specs[0])


def max_bytes(spec: Spec) -> int:
    """The size of the largest message that `spec` allows."""
    return FRAME + sum(
        FRAME + prod(_max_bytes_of(dim) for dim in field.shape) * field.dtype.itemsize
        for field in spec.values()
    )


def _max_bytes_of(dim: int | Dim) -> int:
    return dim.most if isinstance(dim, Dim) else dim


def _fits(tensor: Tensor, field: Field, sizes: dict[Dim, int]) -> bool:
    """Whether the shape is as declared, given the sizes that other tensors have chosen."""
    return tensor.ndim == len(field.shape) and all(
        size == (sizes.setdefault(dim, size) if isinstance(dim, Dim) else dim)
        and size <= _max_bytes_of(dim)
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
    """Of what a class, a neuron or a filter has; in double precision, where no float overflows."""
    if tensor.numel() == 0:
        return 0.0
    rows = tensor.flatten(1) if tensor.ndim > 1 else tensor.reshape(1, -1)
    return float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max())
