"""A network as far as its representation, and what is put around it."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from fedgh.errors import ConfigError

Transform = Callable[[Tensor], Tensor]
"""From a batch as it is kept (pixels are in [-1, 1]) to what a network takes."""

OUTPUTS = ("pooler_output", "logits", "last_hidden_state")
"""Where transformers put what could be a representation, the best first."""


class Body(nn.Module):
    """A network as far as its representation, one vector for each sample."""

    def __init__(
        self, network: nn.Module, transform: Transform | None, layer: str | None, frozen: bool
    ) -> None:
        super().__init__()
        self.transform = transform
        self.network = network
        self.layer = layer
        self.frozen = frozen
        if frozen:
            network.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ...] -> [batch, width]."""
        if self.transform is not None:
            x = self.transform(x)
        return vectors(self.network(x) if self.layer is None else self._at(self.layer, x))

    def train(self, mode: bool = True) -> "Body":
        """A frozen network also keeps the statistics of its normalisations."""
        super().train(mode)
        if self.frozen:
            self.network.eval()
        return self

    def _at(self, layer: str, x: Tensor) -> object:
        seen: list[object] = []
        hook = self.network.get_submodule(layer).register_forward_hook(
            lambda _, __, out: seen.append(out)
        )
        try:
            self.network(x)
        finally:
            hook.remove()
        if not seen:
            raise ConfigError(f"the network does not use its layer '{layer}'")
        return seen[-1]


class Adapted(nn.Module):
    """A network and the projection to the width that all agree on."""

    def __init__(self, body: Body, projection: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ...] -> [batch, rep_dim]."""
        out: Tensor = self.projection(self.body(x))
        return out


def tensor_in(out: object) -> Tensor:
    """The tensor that a network means: itself, the first of several, or a named one."""
    if isinstance(out, Tensor):
        return out
    if isinstance(out, Mapping):
        named = [out[name] for name in OUTPUTS if out.get(name) is not None]
        return tensor_in((named or list(out.values()))[0])
    if isinstance(out, tuple | list) and out:
        return tensor_in(out[0])
    raise ConfigError(f"the network gives a {type(out).__name__} instead of a tensor")


def vectors(out: object) -> Tensor:
    """One vector for each sample: the mean over places of a picture, or over words of a text."""
    tensor = tensor_in(out)
    if tensor.ndim == 2:
        return tensor
    if tensor.ndim == 3 and isinstance(out, Tensor):
        raise ConfigError(
            f"the network gives {tuple(tensor.shape)}: which of it is the vector of a sample? End "
            "it in nn.AdaptiveAvgPool1d(1), nn.Flatten(), or name a layer"
        )
    if tensor.ndim == 3:
        return tensor.mean(1)
    if tensor.ndim > 3:
        return tensor.flatten(2).mean(2)
    raise ConfigError(f"the network gives {tuple(tensor.shape)} instead of a vector per sample")
