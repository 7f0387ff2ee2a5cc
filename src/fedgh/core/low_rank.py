"""Low-rank compression of network updates: singular vectors that hold a share of the energy."""

import torch

from fedgh.core import wire
from fedgh.core.types import Payload

LEFT, RIGHT = ".left", ".right"


def compress(update: Payload, energy: float) -> Payload:
    """Replace every matrix by the fewest singular vectors that hold this share of its energy.

    A convolution is treated as a matrix [outputs, all other axes]. Vectors stay unchanged.
    """
    out: Payload = {}
    for name, tensor in update.items():
        if tensor.ndim < 2:
            out[name] = tensor
            continue
        u, s, v = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
        kept = s.double().square().cumsum(0)
        # The smallest sufficient rank; 0 for a matrix of zeros.
        rank = int((kept < energy * kept[-1]).sum()) + 1 if kept[-1] > 0 else 0
        out[name + LEFT] = (u[:, :rank] * s[:rank]).contiguous()
        out[name + RIGHT] = v[:rank].contiguous()
    return out


def expand(factors: Payload) -> Payload:
    """Undo `compress`, except for the energy left out; convolutions stay matrices."""
    return {
        name.removesuffix(LEFT): tensor @ factors[name.removesuffix(LEFT) + RIGHT]
        if name.endswith(LEFT)
        else tensor
        for name, tensor in factors.items()
        if not name.endswith(RIGHT)
    }


def compressed_spec(update: Payload) -> wire.Spec:
    """Return the spec of a compressed update: a matrix becomes two factors of any rank."""
    spec: dict[str, wire.Field] = {}
    for name, tensor in update.items():
        if tensor.ndim < 2:
            spec[name] = wire.Field(tensor.dtype, tuple(tensor.shape))
        else:
            outputs, inputs = tensor.flatten(1).shape
            rank = wire.Dim(f"rank of {name}", min(outputs, inputs))
            spec[name + LEFT] = wire.Field(tensor.dtype, (outputs, rank))
            spec[name + RIGHT] = wire.Field(tensor.dtype, (rank, inputs))
    return spec


def plus(a: Payload, b: Payload) -> Payload:
    """Return a + b, with the shapes of `a`."""
    return {name: tensor + b[name].view_as(tensor) for name, tensor in a.items()}
