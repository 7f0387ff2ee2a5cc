import pytest
import torch
from torch import nn

from fedgh.core.types import Task
from fedgh.errors import ConfigError
from fedgh.models import EXTRACTORS, check_extractor, extractor, split_model

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


def test_resnet18_is_resnet18() -> None:
    net = EXTRACTORS["resnet18"]((3, 32, 32), 500)
    # The published ImageNet ResNet-18 has 11,176,512 parameters before its last layer, 9,408 of
    # them in its 7x7 stem; ours has a 3x3 stem (1,728) and a dense layer 512 -> 500.
    assert sum(p.numel() for p in net.parameters()) == 11_176_512 - 9_408 + 1_728 + 512 * 500 + 500
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 17 + 3  # 17 in the trunk, 3 in shortcuts
    features = net[:-4](torch.randn(1, 3, 32, 32))  # type: ignore[index]
    assert features.shape == (1, 512, 4, 4)


def test_a_users_own_extractor_is_found_by_name() -> None:
    assert extractor("tests.tiny:mlp").__name__ == "mlp"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cnn", "did you mean 'cnn"),
        ("zebra", "known: cnn1"),
        ("no.such.module:net", "cannot import"),
        ("tests.tiny:nothing", "cannot import"),
        ("tests.tiny:QUICK", "not a function"),
    ],
)
def test_an_unknown_extractor_is_named(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        extractor(name)


def test_an_extractor_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.rep_dim = 8 asks for \(2, 8\)"):
        check_extractor("mine", extractor("tests.tiny:wrong_width"), (1, 8, 8), 8)


def test_an_extractor_that_cannot_take_such_inputs_is_refused() -> None:
    with pytest.raises(ConfigError, match="32x32"):
        check_extractor("cnn1", EXTRACTORS["cnn1"], (3, 28, 28), 500)
    with pytest.raises(ConfigError, match="fails on inputs of shape"):
        check_extractor("mine", lambda _shape, _dim: nn.Linear(3, 3), (1, 8, 8), 8)
