"""Nested networks: each is a part of the next one, such as `mlp@1/4`, `mlp@1/2`, `mlp`."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from torch import Tensor
from torch.func import functional_call

from fedgh.core.average import load_network, network_state, network_weights
from fedgh.core.subnet import Cut, cut, sizes_of, take
from fedgh.core.types import Payload, SplitModel, Task, part
from fedgh.errors import ConfigError
from fedgh.models import shared_model
from fedgh.models.cuts import check_cut, shared_sizes

STATISTICS = ("running_mean", "running_var")

SETTING = "method.widths"
"""The setting that names the networks."""


def check_nested(names: Sequence[str], task: Task) -> None:
    """Raise ConfigError unless each of the named networks is a part of the next, and narrower."""
    networks = [shared_model(name, task, SETTING) for name in names]
    sizes = [sizes_of(network_state(network)) for network in networks]
    for narrow, wide in pairwise(range(len(names))):
        try:
            cut(sizes[wide], sizes[narrow])
            check_cut(networks[-1], networks[narrow], task.input_shape)
        except ConfigError as error:
            raise ConfigError(
                f"{SETTING}: {names[narrow]} is not a part of {names[wide]}: {error}"
            ) from None
        if sizes[narrow] == sizes[wide]:
            raise ConfigError(f"{SETTING}: {names[narrow]} is as wide as {names[wide]}")


class Nested:
    """A network that can be used at the widths of its parts: `nested(number, x)`.

    All widths share the weights of the network. Each has running statistics of its own. Raise
    ConfigError if the network is none of the named ones.
    """

    def __init__(self, names: Sequence[str], network: SplitModel, task: Task) -> None:
        own = sizes_of(network_state(network))
        known = [shared_sizes(name, task, SETTING) for name in names]
        if own not in known:
            raise ConfigError(
                f"the client's network is none of {SETTING}: {', '.join(names)}; "
                "name some of these in model.extractors"
            )
        position = known.index(own)
        parts = [shared_model(name, task).requires_grad_(False) for name in names[:position]]
        device = network.header.weight.device
        self._weights: Payload = dict(network.named_parameters())
        self.networks = [*(each.to(device) for each in parts), network]

    @cached_property
    def _cuts(self) -> list[Cut]:
        narrower = [sizes_of(network_weights(network)) for network in self.networks[:-1]]
        return [cut(sizes_of(self._weights), sizes) for sizes in narrower]

    def __call__(self, number: int, x: Tensor) -> Tensor:
        """Return the logits at a width; gradients reach the weights of the whole network."""
        values = take(self._weights, self._cuts[number]) if number < len(self._cuts) else {}
        out: Tensor = functional_call(self.networks[number], values, (x,))
        return out

    def state(self) -> Payload:
        """Return the weights, and the running statistics of each width."""
        state = network_weights(self.networks[-1])
        for number, network in enumerate(self.networks):
            for name, tensor in network_state(network).items():
                if name.endswith(STATISTICS):
                    state[f"width{number}.{name}"] = tensor
        return state

    def load(self, state: Payload) -> None:
        """Load the weights, and the running statistics of each width."""
        weights = {name: state[name] for name in self._weights}
        for number, network in enumerate(self.networks):
            known = weights if network is self.networks[-1] else {}
            statistics = part(state, f"width{number}.")
            load_network(network, network_state(network) | known | statistics)
