"""Feature maps: fixed functions from an input to a vector, the same for all clients.

- "conv", for images: local filters with both signs, a threshold, and the mean over each quarter of
  the image. The filters are random and whitened: neighbouring pixels and channels of images are
  correlated, so filters without whitening would mostly measure brightness. Whitening uses an
  assumed covariance, not data: it decays exponentially with the distance between pixels.
- "relu", for other inputs: random linear functions, followed by a ReLU.
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
"""Names of random maps; "auto" is "conv" for images and "relu" for other inputs."""

QUARTERS = 2
"""Rows, and columns, into which an image is divided."""

SIDE = 6
"""Height and width of a filter in pixels."""

REACH = 30.0
"""Distance in pixels over which the assumed correlation falls to 1/e."""

CHANNELS_ALIKE = 0.8
"""Assumed correlation between the channels of a pixel."""

NOISE = 0.01
"""Assumed share of noise in the variance of a pixel; it limits the gain without a signal."""

THRESHOLD = 0.6
"""Threshold of a filter's output, in standard deviations under the assumed covariance."""

FLAT = 0.05
"""Contrast below which an image counts as flat; inputs lie between -1 and 1."""

OUTPUTS_AT_ONCE = 2**20
"""Numbers that filters compute before they are averaged: few enough for a processor's cache."""


class ConvFeatures(nn.Module):
    """The map "conv": random whitened filters. It computes in the precision of its input."""

    def __init__(self, shape: tuple[int, ...], width: int, rng: torch.Generator) -> None:
        super().__init__()
        channels, height, across = shape
        per_filter = 2 * QUARTERS**2  # both signs, each quarter
        if width % per_filter:
            raise ConfigError(
                f"the width should be a multiple of {per_filter} for images, got {width}"
            )
        side = min(SIDE, height, across)
        filters = _rounded(_whitened(width // per_filter, channels, side, rng))
        self.register_buffer("filters", filters.view(-1, channels, side, side))

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, channels, height, width] to [batch, features]."""
        if torch.compiler.is_compiling():  # an exported model takes batches of any size
            return self._features(x)
        outputs_of_an_image = len(self.get_buffer("filters")) * x.shape[-2:].numel()
        parts = x.split(max(1, OUTPUTS_AT_ONCE // outputs_of_an_image))
        return torch.cat([self._features(part) for part in parts])

    def _features(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3), keepdim=True)
        contrast = x.std((1, 2, 3), keepdim=True)
        # A fixed memory layout: with another, additions have another order.
        normalised = ((x - mean) / (contrast + FLAT)).clone(memory_format=torch.channels_last)
        outputs = conv2d(normalised, self.get_buffer("filters").to(x.dtype))
        signed = torch.cat([outputs, -outputs], dim=1) - THRESHOLD
        return adaptive_avg_pool2d(signed.relu_(), QUARTERS).flatten(1)


class ReluFeatures(nn.Module):
    """The map "relu": random affine functions, followed by a ReLU."""

    def __init__(self, shape: tuple[int, ...], width: int, rng: torch.Generator) -> None:
        super().__init__()
        size = math.prod(shape)
        weight = torch.randn(width, size, generator=rng, dtype=torch.float64) / math.sqrt(size)
        bias = torch.randn(width, generator=rng, dtype=torch.float64)
        self.register_buffer("weight", _rounded(weight))
        self.register_buffer("bias", _rounded(bias))

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, ...] to [batch, features]."""
        weight, bias = (self.get_buffer(name).to(x.dtype) for name in ("weight", "bias"))
        return linear(x.flatten(1), weight, bias).relu_()


class NamedFeatures(nn.Module):
    """A network as a feature map. It computes in single precision."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, ...] to [batch, features]."""
        out: Tensor = self.network(x.float())
        return out.to(x.dtype)


def _rounded(numbers: Tensor) -> Tensor:
    """Return numbers without the last digits, which depend on processor and thread count."""
    return (numbers * 2**20).round() / 2**20


def _whitened(count: int, channels: int, side: int, rng: torch.Generator) -> Tensor:
    """Return random filters whose outputs have variance one under the assumed covariance."""
    pixels = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    space = torch.exp(-torch.cdist(pixels, pixels) / REACH)
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
    """Return a feature map; equal arguments give the same map on every client.

    The module is cached, so callers must not change it. Raise ConfigError if the map is impossible.
    """
    if not shape:
        raise ConfigError(
            "all clients need inputs of one shape; set data.shape if data.name = 'private'"
        )
    if name == "auto":
        name = "conv" if len(shape) == 3 else "relu"
    if name == "conv" and len(shape) != 3:
        raise ConfigError(f"'conv' is for images, but inputs have shape {shape}; use 'relu'")
    if weights and name in FEATURES:
        raise ConfigError(f"method.weights is for networks; '{name}' has no weights to load")
    features = _create(name, weights, width, shape, seed).eval().requires_grad_(False)
    return features if device == CPU else features.to(device, torch.float32)


def _create(name: str, weights: str, width: int, shape: tuple[int, ...], seed: int) -> nn.Module:
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
    """Return a digest of 8 bytes of the weights of a map."""
    digest = blake2b(digest_size=8)
    for name, tensor in features.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
