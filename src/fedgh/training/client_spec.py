"""What one party brings to a federation: any network, any data. Neither ever leaves it."""

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
    """A network and data, for a `Federation` in one program or for one between machines.

    A network that classifies gives away its representation: what goes into its last linear layer.
    `layer` names another one, and a projection is added where the width differs from the others'.
    uint8 inputs [n, c, h, w] are images, which reach `transform` and the network as floats in
    [-1, 1]; all others become float32.
    """

    network: nn.Module
    data: Data | None = field(default=None, repr=False)  # None: only to use a trained model again
    name: str = ""
    layer: str | None = None  # whose output is the representation
    transform: Transform | None = None  # between the data and the network, for every batch
    weights: Path | str | None = None  # a safetensors file for the network to start from
    frozen: bool = False  # the network stays as it is; only a projection and the header train
    image_size: int = IMAGE_SIZE  # to which pictures of any size are scaled

    def __post_init__(self) -> None:
        if not isinstance(self.network, nn.Module):
            raise ConfigError(f"network: expected a torch.nn.Module, got {self.network!r}")

    def source(self, classes: Sequence[str] | None = None) -> Source:
        """The data as tensors, their labels among `classes`."""
        if self.data is None:
            raise DataError("data: there are none; say ClientSpec(network, data)")
        return source_of(self.data, classes, self.image_size)

    def extractor(
        self, shape: tuple[int, ...], classes: int, rep_dim: int | None = None
    ) -> NetworkExtractor:
        """The network as an extractor of inputs of that shape."""
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
