from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedgh.core.types import Task
from fedgh.errors import ConfigError
from fedgh.models import EXTRACTORS, Extractor, check_extractor, extractor, split_model

PAPER = {
    "cnn1": (2_621_558, 10.00),
    "cnn2": (1_815_142, 6.92),
    "cnn3": (1_320_558, 5.04),
    "cnn4": (1_060_358, 4.04),
    "cnn5": (670_058, 2.56),
}


def task(channels: int = 3, num_classes: int = 10) -> Task:
    return Task(num_classes, 500, 1, 1, seed=0, input_shape=(channels, 32, 32))


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_networks_have_the_papers_sizes(name: str) -> None:
    model = split_model(EXTRACTORS[name], task())
    size = sum(p.numel() for p in model.parameters())
    assert size == PAPER[name][0]
    assert size * 4 / 2**20 == pytest.approx(PAPER[name][1], abs=0.005)


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_network_maps_images_to_representations(name: str, channels: int) -> None:
    model = split_model(EXTRACTORS[name], task(channels, 7)).eval()
    x = torch.randn(2, channels, 32, 32)
    with torch.inference_mode():
        assert model.represent(x).shape == (2, 500)
        assert model.represent(x).min() >= 0
        assert model(x).shape == (2, 7)
        assert model(x).equal(model.header(model.represent(x)))


@pytest.mark.parametrize("name", PAPER)
def test_relu_after_pooling_equals_relu_before_pooling(name: str) -> None:
    ours = EXTRACTORS[name]((3, 32, 32), 500)
    layers = list(ours)  # type: ignore[call-overload]
    for first in (1, 4):
        assert isinstance(layers[first], nn.MaxPool2d)
        layers[first], layers[first + 1] = layers[first + 1], layers[first]
    papers = nn.Sequential(*layers)  # the same weights
    x = torch.randn(8, 3, 32, 32)
    x[:, :, 8:24, 4:20] = -1  # constant areas, where the largest of four is not unique
    gradients = []
    for network in (ours, papers):
        network.zero_grad()
        out = network(x)
        out.square().sum().backward()
        gradients.append([out.detach(), *(p.grad for p in network.parameters())])
    for a, b in zip(*gradients, strict=True):
        assert a.equal(b)


@pytest.mark.parametrize("shape", [(7,), (1, 8, 8), (3, 32, 32)])
@pytest.mark.parametrize("name", ["mlp", "perceptron"])
def test_small_networks_take_any_shape(name: str, shape: tuple[int, ...]) -> None:
    out = EXTRACTORS[name](shape, 5)(torch.randn(4, *shape))
    assert out.shape == (4, 5)
    assert (out >= 0).all()


def test_resnet18_has_the_published_layers_and_parameters() -> None:
    net = EXTRACTORS["resnet18"]((3, 32, 32), 500)
    # The published ImageNet ResNet-18 has 11,176,512 parameters before its last layer, 9,408 of
    # them in its 7x7 stem; ours has a 3x3 stem (1,728) and a dense layer 512 -> 500.
    assert sum(p.numel() for p in net.parameters()) == 11_176_512 - 9_408 + 1_728 + 512 * 500 + 500
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 17 + 3  # 17 in the trunk, 3 in shortcuts
    features = net[:-4](torch.randn(1, 3, 32, 32))  # type: ignore[index]
    assert features.shape == (1, 512, 4, 4)


def test_a_users_own_extractor_is_found_by_name() -> None:
    assert extractor("tests.support.tiny:mlp").__name__ == "mlp"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cnn", "did you mean 'cnn"),
        ("zebra", "known: cnn1"),
        ("no.such.module:net", "cannot import"),
        ("tests.support.tiny:nothing", "cannot import"),
        ("tests.support.tiny:QUICK", "not a function"),
        (":net", "cannot import"),
        (".x:net", "cannot import"),
    ],
)
def test_an_unknown_extractor_is_rejected_with_a_suggestion(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        extractor(name)


def lazy(_shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(rep_dim))


class TwoOutputs(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return x, x


def volumes(_shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, rep_dim, 4), nn.Flatten())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (extractor("tests.support.tiny:wrong_width"), r"model.rep_dim = 8 asks for \(2, 8\)"),
        (EXTRACTORS["cnn1"], "take 32x32 images"),
        (lambda _shape, _dim: nn.Linear(3, 3), "fails on inputs of shape"),
        (lambda _shape, _dim: TwoOutputs(3, 3), "tuple"),
        (lambda _shape, _dim: 5, "fails on inputs of shape"),
    ],
)
def test_an_extractor_that_does_not_fit_is_rejected(make: Extractor, says: str) -> None:
    small = Task(10, 8, 1, 1, seed=0, input_shape=(1, 8, 8))
    with pytest.raises(ConfigError, match=says):
        check_extractor("mine", make, small)


def test_lazy_layers_are_initialised_before_a_state_is_loaded() -> None:
    small = Task(10, 8, 1, 1, seed=0, input_shape=(1, 8, 8))
    check_extractor("mine", lazy, small)
    assert split_model(lazy, small).state_dict()["extractor.1.weight"].shape == (8, 64)


def test_inputs_may_have_any_shape() -> None:
    check_extractor("mine", volumes, Task(10, 8, 1, 1, seed=0, input_shape=(1, 4, 4, 4)))
