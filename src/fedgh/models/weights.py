"""Load initial weights from a safetensors file."""

from pathlib import Path

from safetensors.torch import load
from torch import Tensor, nn

from fedgh.errors import ConfigError, printable
from fedgh.files import read_bytes

MAX_WEIGHTS = 2**32
"""Bytes of a file of weights: a billion numbers, more than a client can train."""


def load_weights(network: nn.Module, path: Path, head: str | None = None) -> None:
    """Load the weights in a safetensors file into a network; ignore those of the removed `head`.

    Raise ConfigError unless all other weights are there and fit: otherwise a network that starts
    with some random weights would train unnoticed.
    """
    try:
        weights = load(read_bytes(path, MAX_WEIGHTS, follow=True))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give another file") from None
    except Exception as error:  # safetensors and torch raise many types for invalid bytes
        raise ConfigError(
            f"{path} is not a readable safetensors file: {printable(str(error))}; "
            "save it again with safetensors"
        ) from None
    if head is not None:
        weights = {name: t for name, t in weights.items() if not name.startswith(f"{head}.")}
    own = network.state_dict()
    loaded = {_storage(own[name]) for name in own if name in weights}
    problems = [
        f"{name} is missing"
        for name in own
        if name not in weights and _storage(own[name]) not in loaded
    ]
    problems += [f"{name} is not in the network" for name in weights if name not in own]
    problems += [
        f"{name} is {list(weights[name].shape)}, not {list(own[name].shape)}"
        for name in own
        if name in weights and own[name].shape != weights[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ConfigError(
            f"{path} does not fit {type(network).__name__}: "
            f"{printable('; '.join(problems[:3]))}{more}"
        )
    network.load_state_dict(weights, strict=False)  # a file has a shared tensor under one name only


def _storage(tensor: Tensor) -> tuple[object, ...]:
    """Return the location in memory: equal for two names of one tensor."""
    if not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.shape, tensor.stride())
