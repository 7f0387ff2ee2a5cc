"""What may cross between a client and the server, and what it costs.

A payload travels as safetensors. What arrives is untrusted: it is parsed without executing
anything and compared with what the method declared before the method sees it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import safetensors.torch
import torch
from safetensors import SafetensorError

from fedgh.core.types import Payload
from fedgh.errors import WireError


@dataclass(frozen=True)
class Field:
    """One declared tensor. A dimension is a number, or a name that stands for one size."""

    dtype: torch.dtype
    shape: tuple[int | str, ...]
    classes: int | None = None  # the values are distinct class labels below this number
    at_least: int | None = None  # the smallest value allowed


Spec = Mapping[str, Field]


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
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise WireError(f"not a readable message: {error}") from None


def check(payload: Payload, spec: Spec) -> None:
    """Accept exactly what was declared: names, dtypes, shapes, finite values, valid labels."""
    if payload.keys() != spec.keys():
        raise WireError(f"expected tensors {sorted(spec)}, got {sorted(payload)}")
    sizes: dict[str, int] = {}
    for name, field in spec.items():
        tensor = payload[name]
        if tensor.dtype != field.dtype:
            raise WireError(f"'{name}' is {tensor.dtype}, declared {field.dtype}")
        wanted = tuple(
            sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            for dim, size in zip(field.shape, tensor.shape, strict=False)
        )
        if len(field.shape) != tensor.ndim or wanted != tuple(tensor.shape):
            raise WireError(f"'{name}' has shape {tuple(tensor.shape)}, declared {field.shape}")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise WireError(f"'{name}' has values that are not finite")
        if field.at_least is not None and bool((tensor < field.at_least).any()):
            raise WireError(f"'{name}' has values below {field.at_least}")
        if field.classes is not None:
            if bool(((tensor < 0) | (tensor >= field.classes)).any()):
                raise WireError(f"'{name}' has labels outside 0..{field.classes - 1}")
            if len(tensor.unique()) != tensor.numel():
                raise WireError(f"'{name}' names a class twice")
