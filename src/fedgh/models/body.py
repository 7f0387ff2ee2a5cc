"""The modules of an adapted network: the network up to its representation, and a projection."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from fedgh.errors import ConfigError

Transform = Callable[[Tensor], Tensor]
"""Function from a batch of inputs (pixels in [-1, 1]) to the input of a network."""

OUTPUTS = ("pooler_output", "logits", "last_hidden_state")
"""Fields in which transformers return a possible representation, the preferred one first."""


class Body(nn.Module):
    """A network up to its representation, which is one vector per sample."""

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
        """Map [batch, ...] to [batch, width]."""
        if self.transform is not None:
            x = self.transform(x)
        return vectors(self.network(x) if self.layer is None else self._output_of(self.layer, x))

    def train(self, mode: bool = True) -> "Body":
        """Set train or eval mode; a frozen network stays in eval mode and keeps its statistics."""
        super().train(mode)
        if self.frozen:
            self.network.eval()
        return self

    def _output_of(self, layer: str, x: Tensor) -> object:
        outputs: list[object] = []
        hook = self.network.get_submodule(layer).register_forward_hook(
            lambda _, __, out: outputs.append(out)
        )
        try:
            self.network(x)
        finally:
            hook.remove()
        if not outputs:
            raise ConfigError(f"the network does not use its layer '{layer}'; name another layer")
        return outputs[-1]


class Adapted(nn.Module):
    """A network and the projection to the width of representations."""

    def __init__(self, body: Body, projection: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, ...] to [batch, rep_dim]."""
        out: Tensor = self.projection(self.body(x))
        return out


def tensor_in(out: object) -> Tensor:
    """Return the tensor in a network's output: itself, the first of several, or a named one.

    Raise ConfigError if there is none.
    """
    if isinstance(out, Tensor):
        return out
    if isinstance(out, Mapping):
        named = [out[name] for name in OUTPUTS if out.get(name) is not None]
        return tensor_in((named or list(out.values()))[0])
    if isinstance(out, tuple | list) and out:
        return tensor_in(out[0])
    raise ConfigError(f"the network returns a {type(out).__name__} instead of a tensor")


def vectors(out: object) -> Tensor:
    """Return one vector per sample: means over pixels of an image, or over tokens of a text.

    Raise ConfigError if the output has another shape.
    """
    tensor = tensor_in(out)
    if tensor.ndim == 2:
        return tensor
    if tensor.ndim == 3 and isinstance(out, Tensor):
        raise ConfigError(
            f"the network returns {tuple(tensor.shape)} instead of a vector per sample; end it in "
            "nn.AdaptiveAvgPool1d(1), nn.Flatten(), or name a layer"
        )
    if tensor.ndim == 3:
        return tensor.mean(1)
    if tensor.ndim > 3:
        return tensor.flatten(2).mean(2)
    raise ConfigError(f"the network returns {tuple(tensor.shape)} instead of a vector per sample")
