"""Feature maps that all clients know: from an input to a vector, fixed before the first round.

- "conv", for images: local filters, both signs, a threshold, and the mean over each quarter of the
  image. The filters are random directions, whitened: neighbouring pixels and channels of images
  are alike, so that others would see little but brightness. The covariance that is divided out is
  a formula, not data: it falls off exponentially with the distance between pixels.
- "relu", for anything else: random linear functions through a ReLU.
- a network by its name, as in `model.extractors`: with its published weights, with those of a
  safetensors file, or with random ones from the seed.
"""

import math
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, conv2d, linear

from fedgh.core.rng import isolated, stream
from fedgh.core.types import CPU, Task
from fedgh.errors import ConfigError
from fedgh.models import check_extractor, extractor
from fedgh.models.weights import load_weights

FEATURES = ("auto", "conv", "relu")
"""Names of maps that need nothing but the seed; "auto" is "conv" for images, else "relu"."""

QUARTERS = 2
"""Rows and columns into which an image is divided."""

SIDE = 6
"""Pixels to a side of a filter."""

REACH = 30.0
"""Distance in pixels over which the assumed correlation falls to 1/e."""

CHANNELS_ALIKE = 0.8
"""Assumed correlation between the channels of a pixel."""

NOISE = 0.01
"""Assumed share of noise in the variance of a pixel: directions without signal are not blown up."""

THRESHOLD = 0.6
"""What a filter has to exceed, in standard deviations of its assumed output."""

FLAT = 0.05
"""Contrast below which an image counts as flat; inputs lie between -1 and 1."""


class ConvFeatures(nn.Module):
    """Random whitened filters; computes in the precision of its input."""

    def __init__(self, shape: tuple[int, ...], width: int, rng: torch.Generator) -> None:
        super().__init__()
        channels, height, across = shape
        per_filter = 2 * QUARTERS**2  # both signs, each quarter
        if width % per_filter:
            raise ConfigError(f"should be a multiple of {per_filter} for images, got {width}")
        side = min(SIDE, height, across)
        filters = _rounded(_whitened(width // per_filter, channels, side, rng))
        self.register_buffer("filters", filters.view(-1, channels, side, side))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] -> [batch, features]."""
        middle = x.mean((1, 2, 3), keepdim=True)
        contrast = x.std((1, 2, 3), keepdim=True)
        # One layout whatever the input's: another has another order of additions.
        even = ((x - middle) / (contrast + FLAT)).clone(memory_format=torch.channels_last)
        seen = conv2d(even, self.get_buffer("filters").to(x.dtype))
        both = torch.cat([seen, -seen], dim=1) - THRESHOLD
        return adaptive_avg_pool2d(both.relu_(), QUARTERS).flatten(1)


class ReluFeatures(nn.Module):
    """Random linear functions with an offset through a ReLU."""

    def __init__(self, shape: tuple[int, ...], width: int, rng: torch.Generator) -> None:
        super().__init__()
        size = math.prod(shape)
        weight = torch.randn(width, size, generator=rng, dtype=torch.float64) / math.sqrt(size)
        bias = torch.randn(width, generator=rng, dtype=torch.float64)
        self.register_buffer("weight", _rounded(weight))
        self.register_buffer("bias", _rounded(bias))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ...] -> [batch, features]."""
        weight, bias = (self.get_buffer(name).to(x.dtype) for name in ("weight", "bias"))
        return linear(x.flatten(1), weight, bias).relu_()


class NamedFeatures(nn.Module):
    """A network as a feature map; it computes in single precision."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ...] -> [batch, features]."""
        out: Tensor = self.network(x.float())
        return out.to(x.dtype)


def _rounded(numbers: Tensor) -> Tensor:
    """Return numbers without their last digits, in which processors and thread counts differ."""
    return (numbers * 2**20).round() / 2**20


def _whitened(count: int, channels: int, side: int, rng: torch.Generator) -> Tensor:
    """Return random filters whose outputs have variance one under the assumed covariance."""
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    space = torch.exp(-torch.cdist(places, places) / REACH)
    colour = torch.full((channels, channels), CHANNELS_ALIKE, dtype=torch.float64)
    colour.fill_diagonal_(1.0)
    covariance = torch.kron(colour, space)
    values, vectors = torch.linalg.eigh(covariance)
    whiten = vectors @ ((values + NOISE).rsqrt()[:, None] * vectors.T)
    filters: Tensor = torch.randn(count, len(values), generator=rng, dtype=torch.float64) @ whiten
    return filters / ((filters @ covariance) * filters).sum(1, keepdim=True).sqrt()


@lru_cache(maxsize=8)
def feature_map(
    name: str,
    weights: str,
    width: int,
    shape: tuple[int, ...],
    seed: int,
    device: torch.device = CPU,
) -> nn.Module:
    """Return the map that every client makes from the same names, sizes and seed.

    ConfigError says why there is none. The module is shared: callers do not change it.
    """
    if not shape:
        raise ConfigError(
            "all clients need inputs of one shape (data.shape, where data are private)"
        )
    if name == "auto":
        name = "conv" if len(shape) == 3 else "relu"
    if name == "conv" and len(shape) != 3:
        raise ConfigError(f"'conv' is for images, but inputs have shape {shape}; use 'relu'")
    if weights and name in FEATURES:
        raise ConfigError(f"method.weights is for networks; '{name}' has none to load")
    made = _made(name, weights, width, shape, seed).eval().requires_grad_(False)
    return made if device == CPU else made.to(device, torch.float32)


def _made(name: str, weights: str, width: int, shape: tuple[int, ...], seed: int) -> nn.Module:
    if name == "conv":
        return ConvFeatures(shape, width, stream(seed, "features"))
    if name == "relu":
        return ReluFeatures(shape, width, stream(seed, "features"))
    make = extractor(name)
    check_extractor(name, make, Task(1, width, 1, 1, seed, shape))
    with isolated(seed, "features"):
        network = make(shape, width)
    if weights:
        load_weights(network, Path(weights))
    return NamedFeatures(network)


def fingerprint(features: nn.Module) -> Tensor:
    """Return 8 bytes that differ between maps that differ in a weight."""
    digest = blake2b(digest_size=8)
    for name, tensor in features.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
