"""Check that a narrower network computes the same as the corresponding part of the whole one."""

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache

import torch
from torch import Tensor, nn

from fedgh.core.average import load_network, network_state
from fedgh.core.groups import clients_with
from fedgh.core.rng import isolated
from fedgh.core.subnet import Sizes, cut, put, sizes_of, take
from fedgh.core.types import Payload, SplitModel, Task
from fedgh.errors import ConfigError
from fedgh.models import shared_model

TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit; rounding stays far below."""


def check_cuts(whole: SplitModel, parts: Sequence[SplitModel], task: Task) -> None:
    """Raise ConfigError unless all networks of `model.extractors` are parts of the whole one."""
    errors: dict[int, ConfigError] = {}
    for number, part in enumerate(parts[: task.num_clients]):
        try:
            check_cut(whole, part, task.input_shape)
        except ConfigError as error:
            errors[number] = error
    if errors:
        first, who = min(errors), clients_with(errors, len(parts), task)
        raise ConfigError(
            f"the network of {who} is not a part of method.shared; client {first}: {errors[first]}"
        )


@lru_cache(maxsize=64)
def shared_sizes(name: str, task: Task, setting: str = "method.shared") -> Sizes:
    """Return the sizes of a shared network's tensors, in the order of its layers."""
    return sizes_of(network_state(shared_model(name, task, setting)))


def check_cut(whole: SplitModel, part: SplitModel, input_shape: tuple[int, ...]) -> None:
    """Raise ConfigError unless a network is a part of the whole one.

    The tensors of both must have the same names, and those of the part must not be larger. With the
    weights of a cut, the part must return the logits of the whole network in which all other
    weights are zero. This is tested with random weights and inputs, for two cuts, in eval mode.
    """
    whole, part = deepcopy(whole).eval(), deepcopy(part).eval()
    with isolated(0, "check-cut"), torch.no_grad():
        state = {name: _random(tensor) for name, tensor in network_state(whole).items()}
        narrower = sizes_of(network_state(part))
        blank = {name: _neutral(name, tensor) for name, tensor in state.items()}
        x = torch.randn(2, *input_shape)
        for shift in (0, 1):
            positions = cut(sizes_of(state), narrower, shift)
            weights = take(state, positions)
            alone = _logits(part, weights, x)
            inside = _logits(whole, put(blank, weights, positions), x)
            if not _close(alone, inside):
                raise ConfigError(
                    "with the weights of a part of the whole network, the narrower one returns "
                    "other logits than that part. Causes are layer and group norms, which mix "
                    "units, and a dense layer after an image that is not flattened by channels"
                )


def _random(like: Tensor) -> Tensor:
    """Return random weights that preserve the variance of signals; vectors are around one."""
    if like.ndim > 1:
        inputs = max(like.shape[1:].numel(), 1)
        return torch.randn_like(like) * math.sqrt(2 / inputs)
    return torch.rand_like(like) + 0.5


def _neutral(name: str, like: Tensor) -> Tensor:
    """Return the values of a unit outside the cut: zeros, and a variance of one."""
    return torch.ones_like(like) if name.endswith("running_var") else torch.zeros_like(like)


def _logits(network: nn.Module, weights: Payload, x: Tensor) -> Tensor:
    load_network(network, weights)
    try:
        out: Tensor = network(x)
    except Exception as error:  # a user's network may raise anything
        shape, text = tuple(x.shape[1:]), " ".join(str(error).split())
        raise ConfigError(
            f"a network fails on inputs of shape {shape}: {type(error).__name__}: {text}"
        ) from error
    return out


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool((one - other).abs().max() <= TOLERANCE * other.abs().max())
