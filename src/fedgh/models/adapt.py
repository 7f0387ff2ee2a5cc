"""Any network as an extractor: where its representation is, and a projection to the width agreed.

A network that was made to classify ends in a linear layer whose outputs are the scores of classes;
what goes into that layer is the representation. It is taken for such a layer when its outputs are
those of the network, and it has one for each class or bears a usual name (`fc`, `classifier`,
`head`). Everything else, and whatever has the width agreed, is taken to give representations.
`layer` says it when that is wrong.
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

HEADS = {"classifier", "fc", "head", "heads", "logits", "score"}


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
    """Return an extractor made of any network; see `NetworkExtractor` for the options."""
    return NetworkExtractor(network, shape, layer, transform, weights, frozen, rep_dim=rep_dim)(
        shape, rep_dim
    )


@dataclass(frozen=True)
class NetworkExtractor:
    """A network that somebody brings; called as an extractor is made, it gives a copy."""

    network: nn.Module
    shape: tuple[int, ...]
    layer: str | None = None  # whose output is the representation; else it is found
    transform: Transform | None = None  # a module is part of the network: it moves, it is exported
    weights: Path | str | None = None  # a safetensors file to start from
    frozen: bool = False  # train only the projection and the header
    classes: int | None = None  # how many there are, to recognise a classifier by its width
    rep_dim: int | None = None  # the width agreed, to recognise an extractor by it

    def __call__(self, _: tuple[int, ...], rep_dim: int) -> nn.Module:
        """The extractor; a projection is added when the width is another."""
        exact = self.width == rep_dim
        if exact and self._plain:
            return deepcopy(self.body.network)
        projection = nn.Identity() if exact else nn.Linear(self.width, rep_dim)
        return Adapted(deepcopy(self.body), projection)

    @property
    def name(self) -> str:
        """What the network is called."""
        return type(self.network).__name__

    @property
    def head(self) -> str | None:
        """The layer that classifies, if the network ends in one."""
        return self._head.name if self._head is not None else None

    @property
    def found(self) -> str:
        """Where its representation is, in words."""
        if self.layer is not None:
            return f"the output of '{self.layer}'"
        return "its output" if self.head is None else f"what goes into '{self.head}'"

    @cached_property
    def body(self) -> Body:
        """The network as far as its representation."""
        network = deepcopy(self._network)
        if self.layer is not None and self.layer not in dict(network.named_modules()):
            names = [name for name, _ in network.named_modules() if name]
            raise ConfigError(
                f"{self.name} has no layer '{self.layer}'; the last are {', '.join(names[-5:])}"
            )
        if self._head is not None:
            _take_off(network, self._head.name)
        if self.weights is not None:
            load_weights(network, Path(self.weights), self.head)
        return Body(network, self.transform, self.layer, self.frozen)

    @cached_property
    def width(self) -> int:
        """The length of its representations; what cannot be one is refused."""
        body = self.body.eval()
        out: Tensor = self._try(lambda: body(self._example))
        for here, there in ((0, 1), (1, 0)):
            other = self._example
            other[there] = 1
            beside: Tensor = self._try(lambda other=other: body(other))  # type: ignore[misc]
            if not torch.allclose(out[here], beside[here], rtol=1e-4, atol=1e-5):
                raise ConfigError(
                    f"{self.name} mixes the samples of a batch (nn.LSTM without batch_first does)"
                )
        width = int(out.shape[1])
        if self.layer is None and self.head is None and width == self.classes != self.rep_dim:
            raise ConfigError(
                f"{self.name} gives a number for each class; say by `layer` whose output is the "
                "representation"
            )
        return width

    @cached_property
    def digest(self) -> bytes:
        """A fingerprint of what it computes, and with which weights it begins."""
        out = blake2b(digest_size=16)
        out.update(repr((self.layer, self.head, self.frozen, self.width)).encode())
        for name, tensor in self.body.state_dict().items():
            out.update(name.encode())
            out.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        # Other code with the same weights shows in what it makes of some input. Rounded: another
        # machine may add up in another order.
        x = (torch.arange(self._example.numel()) % 2).float().view_as(self._example)
        made: Tensor = self._try(lambda: self.body.eval()(x))
        out.update((made / made.abs().max().clamp_min(1e-30) * 1000).round().int().numpy().data)
        return out.digest()

    def __getstate__(self) -> dict[str, object]:
        """One string of bytes: between processes every tensor takes a file descriptor."""
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
        """Whether the network is an extractor as it is, also while it trains."""
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
        """A copy, in which lazy layers have learned their sizes."""
        network = deepcopy(self.network).eval()
        for name, parameter in network.named_parameters():
            if parameter.is_floating_point() and parameter.dtype != torch.float32:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise ConfigError(
                    f"{self.name}: {name} is {kind}, but inputs are float32; call .float() on it"
                )
        if any(is_lazy(parameter) for parameter in network.parameters()):
            self._try(lambda: network(self._seen))
        return network

    @property
    def _seen(self) -> Tensor:
        """What the network sees of the example."""
        return self._example if self.transform is None else self.transform(self._example)

    def _find_head(self) -> "Head | None":
        network = deepcopy(self._network)
        names = {module: name for name, module in network.named_modules()}
        seen: list[Head] = []
        for module in names:
            if isinstance(module, nn.Linear):
                module.register_forward_hook(
                    lambda m, given, out: seen.append(Head(names[m], given[0], out))
                )
        out = tensor_in(network(self._seen))
        if out.shape[-1] == self.rep_dim:
            return None
        for head in seen:
            usual = bool(HEADS & set(head.name.split(".")))
            if head.name and head.scores is out and (usual or out.shape[-1] == self.classes):
                return self._checked(head, [other.name for other in seen])
        return None

    def _checked(self, head: "Head", called: list[str]) -> "Head":
        """The same, if the network without it gives what went into it."""
        network = deepcopy(self._network)
        _take_off(network, head.name)
        out = tensor_in(network(self._seen))
        if called.count(head.name) > 1 or not (
            out.shape == head.given.shape and torch.equal(out, head.given)
        ):
            raise ConfigError(
                f"{self.name} uses its last layer '{head.name}' elsewhere, too; say by `layer` "
                "whose output is the representation"
            )
        return head

    def _try(self, step: Callable[[], T]) -> T:
        """Whatever a network raises, in words."""
        try:
            with torch.no_grad():
                return step()
        except ConfigError:
            raise
        except Exception as error:  # somebody's network may raise anything
            raise ConfigError(
                f"{self.name} fails on inputs of shape {self.shape}: "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error


@dataclass(frozen=True)
class Head:
    """A layer that classifies, and what went in and came out when it was found."""

    name: str
    given: Tensor
    scores: Tensor


def _take_off(network: nn.Module, head: str) -> None:
    """Replace a layer, under all names that it has, by one that does nothing."""
    layer = network.get_submodule(head)
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if module is layer:
            network.set_submodule(name, nn.Identity())
