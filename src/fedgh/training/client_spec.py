"""The network and the data of one client, given in Python. Neither ever leaves the client."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from fedgh.data.own import Data, source_of
from fedgh.data.sources import Source
from fedgh.defaults import IMAGE_SIZE
from fedgh.errors import ConfigError, DataError
from fedgh.models.adapt import NetworkExtractor
from fedgh.models.body import Transform


@dataclass(frozen=True)
class ClientSpec:
    """The network and data of a client, for a `Federation` in one program or between machines.

    The representation of a network that classifies is the input of its last linear layer; `layer`
    names another layer whose output is used instead. A linear projection is added if the width
    differs from that of the other clients. uint8 inputs [n, c, h, w] are images: `transform` and
    the network receive them as floats in [-1, 1]. All other inputs become float32.
    """

    network: nn.Module
    data: Data | None = field(default=None, repr=False)  # None: only to load a trained model
    name: str = ""
    layer: str | None = None  # the layer whose output is the representation
    transform: Transform | None = None  # applied to every batch before the network
    weights: Path | str | None = None  # a safetensors file with the initial weights
    frozen: bool = False  # train only the projection and the header
    image_size: int = IMAGE_SIZE  # height and width to which images of any size are scaled

    def __post_init__(self) -> None:
        if not isinstance(self.network, nn.Module):
            raise ConfigError(f"network: expected a torch.nn.Module, got {self.network!r}")

    def source(self, classes: Sequence[str] | None = None) -> Source:
        """Return the data as tensors, with labels that are positions in `classes`."""
        if self.data is None:
            raise DataError("data: the client has no data; write ClientSpec(network, data)")
        return source_of(self.data, classes, self.image_size)

    def extractor(
        self, shape: tuple[int, ...], classes: int, rep_dim: int | None = None
    ) -> NetworkExtractor:
        """Return the network as an extractor for inputs of this shape."""
        return NetworkExtractor(
            self.network,
            shape,
            self.layer,
            self.transform,
            self.weights,
            self.frozen,
            classes,
            rep_dim,
        )
