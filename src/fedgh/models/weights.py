"""Published weights to start from."""

from pathlib import Path

from safetensors.torch import load
from torch import Tensor, nn

from fedgh.errors import ConfigError, printable
from fedgh.files import read_bytes

MAX_WEIGHTS = 2**32
"""Bytes of a file of weights: a billion numbers, more than a client trains."""


def load_weights(network: nn.Module, path: Path, head: str | None = None) -> None:
    """Start from the weights in a safetensors file; those of `head`, which was taken off, are left.

    All others must be there and fit: half a network would train unnoticed.
    """
    try:
        found = load(read_bytes(path, MAX_WEIGHTS, follow=True))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give another file") from None
    except Exception as error:  # whatever safetensors and torch make of such bytes
        raise ConfigError(
            f"{path} is not a readable safetensors file: {printable(str(error))}; "
            "save it again with safetensors"
        ) from None
    if head is not None:
        found = {name: t for name, t in found.items() if not name.startswith(f"{head}.")}
    own = network.state_dict()
    there = {_place(own[name]) for name in own if name in found}
    problems = [
        f"{name} is missing" for name in own if name not in found and _place(own[name]) not in there
    ]
    problems += [f"{name} is not in the network" for name in found if name not in own]
    problems += [
        f"{name} is {list(found[name].shape)}, not {list(own[name].shape)}"
        for name in own
        if name in found and own[name].shape != found[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ConfigError(
            f"{path} does not fit {type(network).__name__}: "
            f"{printable('; '.join(problems[:3]))}{more}"
        )
    network.load_state_dict(found, strict=False)  # a tensor with two names is there under one


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Where it is in memory: the same for two names of one tensor."""
    if not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.shape, tensor.stride())
