"""Networks of other libraries: `timm/resnet18`, `torchvision/resnet18`, `transformers/FOLDER`.

They start from random weights, except those of transformers, which start from the weights in the
folder (or on the hub, under that name). The libraries are not installed with fedgh.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from fedgh.errors import ConfigError
from fedgh.models.adapt import adapt


@dataclass(frozen=True)
class LibraryExtractor:
    """An extractor that is a network of another library."""

    library: str
    name: str

    def __call__(self, shape: tuple[int, ...], rep_dim: int) -> nn.Module:
        """Return the network without its classifier, with a projection to `rep_dim`.

        Raise ConfigError if the library is missing or does not know the network.
        """
        try:
            module = import_module(self.library)
        except (ImportError, RuntimeError) as error:  # torchvision raises both
            raise ConfigError(
                f"'{self.library}/{self.name}' needs {self.library}: pip install {self.library} "
                f"({' '.join(str(error).split())})"
            ) from None
        try:
            network = FAMILIES[self.library](module, self.name, shape)
        except (OSError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"{self.library} cannot make '{self.name}': {text}") from None
        return adapt(network, shape, rep_dim)


def _timm(library: Any, name: str, shape: tuple[int, ...]) -> nn.Module:
    network: nn.Module = library.create_model(name, num_classes=0, in_chans=shape[0])
    return network


def _torchvision(library: Any, name: str, _: tuple[int, ...]) -> nn.Module:
    network: nn.Module = library.models.get_model(name, weights=None)
    return network


def _transformers(library: Any, name: str, _: tuple[int, ...]) -> nn.Module:
    network: nn.Module = library.AutoModel.from_pretrained(
        name, use_safetensors=True, trust_remote_code=False
    )
    return network


FAMILIES: dict[str, Callable[[Any, str, tuple[int, ...]], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}
