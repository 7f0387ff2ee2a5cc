"""Narrower networks that compute the same as a part of a wider one, and others."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
import torch
from torch import nn

from fedgh.core.average import network_state
from fedgh.core.types import SplitModel, Task
from fedgh.errors import ConfigError
from fedgh.models import Extractor, extractor, split_model
from fedgh.models.cuts import check_cut
from fedgh.models.width import FULL, units

HALF = Fraction(1, 2)


def model_of(make: Extractor | str, shape: tuple[int, ...] = (3, 32, 32)) -> SplitModel:
    make = extractor(make) if isinstance(make, str) else make
    return split_model(make, Task(5, 8, 1, 1, seed=0, input_shape=shape))


@pytest.mark.parametrize(
    ("whole", "parts", "shape"),
    [
        ("cnn1", ["cnn2", "cnn3", "cnn4", "cnn5"], (3, 32, 32)),
        ("cnn1", [f"cnn1@1/{n}" for n in (1, 2, 4, 8, 16)], (1, 32, 32)),
        ("cnn1", ["cnn2@1/3"], (3, 32, 32)),
        ("mlp", [f"mlp@1/{n}" for n in (1, 2, 4, 8, 16)], (3, 32, 32)),
        ("resnet18", [f"resnet18@1/{n}" for n in (2, 4, 8, 16)], (3, 8, 8)),
        ("perceptron", ["perceptron"], (3, 32, 32)),
    ],
)
def test_networks_of_fedgh_are_parts_of_wider_ones(
    whole: str, parts: list[str], shape: tuple[int, ...]
) -> None:
    network = model_of(whole, shape)
    for part in parts:
        check_cut(network, model_of(part, shape), shape)


Normal = Callable[[int], nn.Module]


def images(
    normal: Normal, shape: tuple[int, ...], rep_dim: int, *, width: Fraction = FULL
) -> nn.Module:
    """Return a network of convolution, norm and mean over the image."""
    channels = units(width, 8)
    return nn.Sequential(
        nn.Conv2d(shape[0], channels, 3),
        normal(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, rep_dim),
    )


def vectors(
    normal: Normal, shape: tuple[int, ...], rep_dim: int, *, width: Fraction = FULL
) -> nn.Module:
    """Return a network of dense layer, norm and dense layer."""
    hidden = units(width, 8)
    size = torch.Size(shape).numel()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, hidden), normal(hidden), nn.Linear(hidden, rep_dim)
    )


class ChannelsLast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1)


def flattened(
    order: nn.Module, shape: tuple[int, ...], rep_dim: int, *, width: Fraction = FULL
) -> nn.Module:
    """Return a network of convolution, flattening and dense layer."""
    channels = units(width, 4)
    return nn.Sequential(
        nn.Conv2d(shape[0], channels, 3),
        order,
        nn.Flatten(),
        nn.Linear(channels * (shape[1] - 2) * (shape[2] - 2), rep_dim),
    )


KEPT = [
    partial(images, nn.BatchNorm2d),
    partial(images, lambda channels: nn.BatchNorm2d(channels, affine=False)),
    partial(images, lambda channels: nn.GroupNorm(channels, channels)),  # each channel by itself
    partial(vectors, nn.BatchNorm1d),
    partial(vectors, lambda _: nn.Dropout(0.5)),
    partial(flattened, nn.Identity()),
]
MIXED = [
    partial(images, lambda channels: nn.GroupNorm(1, channels)),
    partial(images, lambda channels: nn.GroupNorm(2, channels)),
    partial(vectors, nn.LayerNorm),
    partial(vectors, lambda units: nn.LayerNorm(units, elementwise_affine=False)),
    partial(vectors, lambda _: nn.Softmax(1)),
    partial(flattened, ChannelsLast()),
]


@pytest.mark.parametrize("make", KEPT)
def test_layers_that_keep_units_separate_can_be_cut(make: Callable[..., nn.Module]) -> None:
    shape = (2, 6, 6)
    check_cut(model_of(make, shape), model_of(partial(make, width=HALF), shape), shape)


@pytest.mark.parametrize("make", MIXED)
def test_layers_that_mix_or_reorder_units_cannot_be_cut(make: Callable[..., nn.Module]) -> None:
    shape = (2, 6, 6)
    # The whole network is a part of itself.
    check_cut(model_of(make, shape), model_of(make, shape), shape)
    with pytest.raises(ConfigError, match="returns other logits"):
        check_cut(model_of(make, shape), model_of(partial(make, width=HALF), shape), shape)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("mlp", r"only the whole network has a tensor 'extractor.0.weight'"),
        ("cnn1", r"'extractor.3.weight' is \(32, 16, 5, 5\) in the part, which does not fit into"),
        ("resnet18", "tensor 'extractor"),
    ],
)
def test_an_error_names_the_tensor_that_does_not_fit(part: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_cut(model_of("cnn2"), model_of(part), (3, 32, 32))


def test_another_number_of_classes_or_channels_is_rejected() -> None:
    whole = model_of("mlp")
    fewer = split_model(extractor("mlp"), Task(4, 8, 1, 1, seed=0, input_shape=(3, 32, 32)))
    with pytest.raises(ConfigError, match="returns other logits"):
        check_cut(whole, fewer, (3, 32, 32))
    with pytest.raises(ConfigError, match=r"a network fails on inputs of shape \(3, 32, 32\)"):
        check_cut(whole, model_of("mlp", (1, 32, 32)), (3, 32, 32))


def test_the_check_changes_neither_networks_nor_the_global_generator() -> None:
    whole, part = model_of("resnet18@1/8", (3, 8, 8)), model_of("resnet18@1/16", (3, 8, 8))
    before = [network_state(network) for network in (whole, part)]
    torch.manual_seed(0)
    check_cut(whole, part, (3, 8, 8))
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert drawn.equal(torch.rand(3))
    assert whole.training
    for network, state in zip((whole, part), before, strict=True):
        after = network_state(network)
        assert all(after[name].equal(tensor) for name, tensor in state.items())
