"""Make an extractor of any network: find its representation, and project it to `rep_dim`.

A network for classification ends in a linear layer, its head, whose outputs are logits; the input
of the head is the representation. A linear layer is taken as head if its output is that of the
network, and if it has one output per class or a usual name (`fc`, `classifier`, `head`). The output
of any other network is taken as representation, also if its width is `rep_dim`. Where this rule is
wrong, `layer` names the layer whose output is the representation.
"""

import io
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedgh.errors import ConfigError
from fedgh.models.body import Adapted, Body, Transform, tensor_in
from fedgh.models.weights import load_weights

T = TypeVar("T")

HEAD_NAMES = {"classifier", "fc", "head", "heads", "logits", "score"}


def adapt(
    network: nn.Module,
    shape: tuple[int, ...],
    rep_dim: int,
    *,
    layer: str | None = None,
    transform: Transform | None = None,
    weights: Path | str | None = None,
    frozen: bool = False,
) -> nn.Module:
    """Return an extractor made of a network; see `NetworkExtractor` for the options."""
    return NetworkExtractor(network, shape, layer, transform, weights, frozen, rep_dim=rep_dim)(
        shape, rep_dim
    )


@dataclass(frozen=True)
class NetworkExtractor:
    """A user's network as an extractor function: each call returns a copy of the network."""

    network: nn.Module
    shape: tuple[int, ...]
    layer: str | None = None  # its output is the representation; None: find it
    transform: Transform | None = None  # before the network; a module is exported with it
    weights: Path | str | None = None  # a safetensors file with initial weights
    frozen: bool = False  # train only the projection and the header
    classes: int | None = None  # number of classes, to recognise a head by its width
    rep_dim: int | None = None  # to recognise a network that gives representations

    def __call__(self, _: tuple[int, ...], rep_dim: int) -> nn.Module:
        """Return the extractor, with a projection if the width of the network is not `rep_dim`."""
        exact = self.width == rep_dim
        if exact and self._plain:
            return deepcopy(self.body.network)
        projection = nn.Identity() if exact else nn.Linear(self.width, rep_dim)
        return Adapted(deepcopy(self.body), projection)

    @property
    def name(self) -> str:
        """The name of the network's class."""
        return type(self.network).__name__

    @property
    def head(self) -> str | None:
        """The name of the head, if the network has one."""
        return self._head.name if self._head is not None else None

    @property
    def representation(self) -> str:
        """The place of the representation in the network, as text for messages."""
        if self.layer is not None:
            return f"the output of '{self.layer}'"
        return "its output" if self.head is None else f"the input of '{self.head}'"

    @cached_property
    def body(self) -> Body:
        """The network up to its representation. Raise ConfigError if `layer` does not exist."""
        network = deepcopy(self._network)
        if self.layer is not None and self.layer not in dict(network.named_modules()):
            names = [name for name, _ in network.named_modules() if name]
            raise ConfigError(
                f"{self.name} has no layer '{self.layer}'; the last are {', '.join(names[-5:])}"
            )
        if self._head is not None:
            _remove(network, self._head.name)
        if self.weights is not None:
            load_weights(network, Path(self.weights), self.head)
        return Body(network, self.transform, self.layer, self.frozen)

    @cached_property
    def width(self) -> int:
        """The width of its representations. Raise ConfigError if its output cannot be one."""
        body = self.body.eval()
        out: Tensor = self._try(lambda: body(self._example))
        for unchanged, changed in ((0, 1), (1, 0)):
            other = self._example
            other[changed] = 1
            again: Tensor = self._try(lambda other=other: body(other))  # type: ignore[misc]
            if not torch.allclose(out[unchanged], again[unchanged], rtol=1e-4, atol=1e-5):
                raise ConfigError(
                    f"{self.name} mixes the samples of a batch (such as nn.LSTM without "
                    "batch_first); its output for a sample must not depend on the others"
                )
        width = int(out.shape[1])
        if self.layer is None and self.head is None and width == self.classes != self.rep_dim:
            raise ConfigError(
                f"{self.name} returns one number per class; name in `layer` the layer whose "
                "output is the representation"
            )
        return width

    @cached_property
    def digest(self) -> bytes:
        """A digest of the function that the network computes and of its initial weights."""
        out = blake2b(digest_size=16)
        out.update(repr((self.layer, self.head, self.frozen, self.width)).encode())
        for name, tensor in self.body.state_dict().items():
            out.update(name.encode())
            out.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        # The output for an example detects other code with the same weights. It is rounded,
        # because another machine may add in another order.
        x = (torch.arange(self._example.numel()) % 2).float().view_as(self._example)
        output: Tensor = self._try(lambda: self.body.eval()(x))
        out.update((output / output.abs().max().clamp_min(1e-30) * 1000).round().int().numpy().data)
        return out.digest()

    def __getstate__(self) -> dict[str, object]:
        """Return the fields as bytes: each tensor sent to a process takes a file descriptor."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        packed = io.BytesIO()
        torch.save(own, packed)
        return {"packed": packed.getvalue()}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        own = torch.load(io.BytesIO(state["packed"]), weights_only=False)
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _plain(self) -> bool:
        """True if the network is an extractor without changes, in train and in eval mode."""
        if self.transform is not None or self.layer is not None or self.frozen:
            return False
        network = deepcopy(self.body.network)
        outs: list[object] = [
            self._try(lambda mode=mode: network.train(mode)(self._example))  # type: ignore[misc]
            for mode in (False, True)
        ]
        return all(isinstance(out, Tensor) and out.ndim == 2 for out in outs)

    @property
    def _example(self) -> Tensor:
        return torch.zeros(2, *self.shape)

    @cached_property
    def _head(self) -> "Head | None":
        return None if self.layer is not None else self._try(self._find_head)

    @cached_property
    def _network(self) -> nn.Module:
        """A copy of the network in eval mode, in which lazy layers have their sizes."""
        network = deepcopy(self.network).eval()
        for name, parameter in network.named_parameters():
            if parameter.is_floating_point() and parameter.dtype != torch.float32:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise ConfigError(
                    f"{self.name}: {name} is {kind}, but inputs are float32; call .float() on it"
                )
        if any(is_lazy(parameter) for parameter in network.parameters()):
            self._try(lambda: network(self._network_input))
        return network

    @property
    def _network_input(self) -> Tensor:
        """The example after the transform."""
        return self._example if self.transform is None else self.transform(self._example)

    def _find_head(self) -> "Head | None":
        network = deepcopy(self._network)
        names = {module: name for name, module in network.named_modules()}
        linear_layers: list[Head] = []
        for module in names:
            if isinstance(module, nn.Linear):
                module.register_forward_hook(
                    lambda m, inputs, out: linear_layers.append(Head(names[m], inputs[0], out))
                )
        out = tensor_in(network(self._network_input))
        if out.shape[-1] == self.rep_dim:
            return None
        for head in linear_layers:
            usual = bool(HEAD_NAMES & set(head.name.split(".")))
            if head.name and head.output is out and (usual or out.shape[-1] == self.classes):
                return self._checked(head, [other.name for other in linear_layers])
        return None

    def _checked(self, head: "Head", called: list[str]) -> "Head":
        """Return the head. Raise ConfigError unless its removal makes its input the output."""
        network = deepcopy(self._network)
        _remove(network, head.name)
        out = tensor_in(network(self._network_input))
        if called.count(head.name) > 1 or not (
            out.shape == head.input.shape and torch.equal(out, head.input)
        ):
            raise ConfigError(
                f"{self.name} uses its last layer '{head.name}' more than once; name in `layer` "
                "the layer whose output is the representation"
            )
        return head

    def _try(self, step: Callable[[], T]) -> T:
        """Return the result of a step. Raise ConfigError for any exception of the network."""
        try:
            with torch.no_grad():
                return step()
        except ConfigError:
            raise
        except Exception as error:  # a user's network may raise anything
            raise ConfigError(
                f"{self.name} fails on inputs of shape {self.shape}: "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error


@dataclass(frozen=True)
class Head:
    """A linear layer, with its input and output for the example."""

    name: str
    input: Tensor
    output: Tensor


def _remove(network: nn.Module, head: str) -> None:
    """Replace a layer by the identity, under all names that it has."""
    layer = network.get_submodule(head)
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if module is layer:
            network.set_submodule(name, nn.Identity())
