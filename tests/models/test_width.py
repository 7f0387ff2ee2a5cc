"""Networks of other widths, by name."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedgh.core.rng import isolated
from fedgh.core.types import Task
from fedgh.errors import ConfigError
from fedgh.models import EXTRACTORS, extractor, is_packaged, parameters_of, split_model
from fedgh.models.width import FULL, read_width, units

CNN_1 = {"1": 2_621_558, "1/2": 910_334, "1/4": 357_122, "1/8": 156_116, "1/16": 74_513}
RESNET_18 = {"1": 11_475_432, "1/2": 2_973_640, "1/4": 814_776, "1/8": 258_352, "1/16": 110_892}


def own(shape: tuple[int, ...], rep_dim: int, width: Fraction = FULL) -> nn.Module:
    hidden = units(width, 10)
    return nn.Sequential(nn.Linear(shape[0], hidden), nn.Linear(hidden, rep_dim))


def task(num_classes: int) -> Task:
    return Task(num_classes, 500, 1, 1, seed=0, input_shape=(3, 32, 32))


@pytest.mark.parametrize("width", CNN_1)
def test_the_sizes_of_cnn1_and_resnet18_by_width(width: str) -> None:
    assert parameters_of(f"cnn1@{width}", task(10)) == CNN_1[width]
    assert parameters_of(f"resnet18@{width}", task(100)) == RESNET_18[width]


def test_units_are_rounded_up() -> None:
    found = [units(Fraction(1, 16), count) for count in (16, 32, 2000, 500)]
    assert found == [1, 2, 125, 32]
    assert units(Fraction(55, 100), 100) == 55  # with floats it would be 56


@given(count=st.integers(1, 5000), lower=st.integers(1, 1000), data=st.data())
def test_no_layer_is_empty_or_wider(count: int, lower: int, data: st.DataObject) -> None:
    width = Fraction(data.draw(st.integers(1, lower)), lower)
    assert 1 <= units(width, count) <= count
    assert units(FULL, count) == count
    assert read_width(f"{width.numerator}/{width.denominator}") == width


@pytest.mark.parametrize("name", ["cnn1", "cnn5", "resnet18", "mlp"])
def test_the_full_width_gives_the_network_itself(name: str) -> None:
    states = []
    for written in (name, f"{name}@1"):
        with isolated(0, "test"):
            states.append(extractor(written)((3, 32, 32), 8).state_dict())
    assert list(states[0]) == list(states[1])
    assert all(states[0][key].equal(states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", ["cnn1@1/2", "cnn4@1/3", "resnet18@1/16", "mlp@1/1000"])
def test_a_narrow_network_has_the_same_header_and_names(name: str) -> None:
    whole = split_model(extractor(name.partition("@")[0]), task(7))
    narrow = split_model(extractor(name), task(7)).eval()
    assert list(narrow.state_dict()) == list(whole.state_dict())
    assert narrow.header.weight.shape == whole.header.weight.shape
    with torch.inference_mode():
        assert narrow(torch.randn(2, 3, 32, 32)).shape == (2, 7)


def test_a_users_function_with_a_width_is_made_narrower() -> None:
    network: Any = extractor(f"{__name__}:own@1/4")((6,), 5)
    assert network[0].weight.shape == (3, 6)


@pytest.mark.parametrize("name", ["tests.support.tiny:mlp", "perceptron", "builtins:max"])
def test_a_function_without_a_width_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' has no parameter `width`"):
        extractor(f"{name}@1/2")


BAD = [
    *("", "0", "2", "x", "0/1", "1/0", "3/2", "-1/2", "0.5", "1/2/1", "1 / 2", "1/2@1/2", " 1/2"),
    *("1/1001", "1/1000000000", "1/" + "9" * 10_000, "\uff11/2", "1/2\n", "01/2", "999/9999"),
]


@pytest.mark.parametrize("width", BAD)
def test_an_invalid_width_is_rejected_with_an_example(width: str) -> None:
    assert not is_packaged(f"cnn1@{width}")
    with pytest.raises(ConfigError, match="a fraction between 0 and 1 such as 1/2") as refused:
        extractor(f"cnn1@{width}")
    assert len(str(refused.value)) < 1000


def test_networks_of_fedgh_are_recognised_by_name() -> None:
    assert all(map(is_packaged, EXTRACTORS))
    assert all(map(is_packaged, ["cnn1@1/2", "resnet18@1/16", "mlp@999/1000", "cnn3@1"]))
    others = ["", "@", "@1/2", "cnn", "cnn@1/2", "mine:cnn1", "mine:cnn1@1/2", "timm/cnn1@1/2"]
    assert not any(map(is_packaged, others))
    assert not is_packaged("perceptron@1/2")  # it has no hidden layer


def test_parameters_are_counted_only_for_networks_of_fedgh() -> None:
    assert parameters_of("no.such.module:net@1/2", task(10)) is None
    assert parameters_of("cnn1@x", task(10)) is None
    assert parameters_of("cnn1@1/2", Task(10, 5, 1, 1, 0, (7,))) is None
