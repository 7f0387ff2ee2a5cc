"""Weighted means over a stream of uploads, and conversion of networks to payloads."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedgh.core import wire
from fedgh.core.types import Payload, Upload
from fedgh.errors import MethodError

AnyNetwork = TypeVar("AnyNetwork", bound=nn.Module)


class WeightedMean:
    """A running weighted mean in double precision, so the order of additions hardly matters."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weight = 0.0

    def add(self, payload: Payload, weight: float) -> None:
        """Add `payload` with this weight."""
        for name, tensor in payload.items():
            value = tensor.double() * weight
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._weight += weight

    def value(self, if_none: Payload) -> Payload:
        """Return the mean, or `if_none` if nothing was added."""
        if not self._weight:
            return if_none
        return {name: (total / self._weight).float() for name, total in self._sums.items()}


def mean_by_examples(uploads: Iterable[Upload], if_none: Payload) -> Payload:
    """Return the mean of the uploads, each weighted by its client's number of samples.

    Raise MethodError if an upload comes without the number of samples.
    """
    mean = WeightedMean()
    for upload in uploads:
        if not upload.num_examples:
            raise MethodError(
                "the server does not receive the clients' numbers of samples; declare "
                "weighs_by_examples = True in the method"
            )
        mean.add(upload.payload, upload.num_examples)
    return mean.value(if_none)


def plain_mean(uploads: Iterable[Upload], if_none: Payload) -> Payload:
    """Return the mean of the uploads, with the same weight for each."""
    mean = WeightedMean()
    for upload in uploads:
        mean.add(upload.payload, 1)
    return mean.value(if_none)


def network_state(network: nn.Module) -> Payload:
    """Return a copy of a network's weights and running statistics.

    The running mean and variance of batch normalisation are included. Its batch counter, which is
    the only integer tensor, is left out, because no computation depends on it.
    """
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
        if tensor.is_floating_point()
    }


def network_weights(network: nn.Module) -> Payload:
    """Return a copy of a network's weights, without running statistics."""
    state = network_state(network)
    return {name: state[name] for name, _ in network.named_parameters()}


def load_network(network: AnyNetwork, payload: Payload) -> AnyNetwork:
    """Load the weights and running statistics in `payload` into a network, and return it."""
    counters = {n: t for n, t in network.state_dict().items() if not t.is_floating_point()}
    network.load_state_dict(counters | payload)
    return network


def network_spec(state: Payload) -> wire.Spec:
    """Return the spec of a message with this network state; it rejects running variances < 0."""
    return {
        name: replace(field, at_least=0 if name.endswith("running_var") else None)
        for name, field in update_spec(state).items()
    }


def update_spec(state: Payload) -> wire.Spec:
    """Return the spec of a message with an update of this network state, a difference of states."""
    return {name: wire.Field(t.dtype, tuple(t.shape)) for name, t in state.items()}
