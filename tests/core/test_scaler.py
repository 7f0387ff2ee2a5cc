"""The scaler: layers divide by their share of units, in a hook or folded into their weights."""

import torch
from torch import nn
from torch.testing import assert_close

from fedgh.core.average import network_state
from fedgh.core.scaler import fold_scaler, layer_rates, scaled
from fedgh.core.subnet import sizes_of
from fedgh.models.cnn import CNN1, CNN2, CNN5


def test_each_layer_has_its_own_rate() -> None:
    whole, part = (sizes_of(network_state(make((3, 32, 32), 500))) for make in (CNN1, CNN2))
    assert layer_rates(whole, part) == {"3": 0.5}
    part = sizes_of(network_state(CNN5((3, 32, 32), 500)))
    assert layer_rates(whole, part) == {"7": 0.25}
    assert layer_rates(whole, whole) == {}


def test_outputs_are_divided_with_their_bias_and_only_for_the_duration() -> None:
    layer = nn.Sequential(nn.Linear(1, 1))
    layer.load_state_dict({"0.weight": torch.tensor([[3.0]]), "0.bias": torch.tensor([1.0])})
    x = torch.ones(1, 1)
    with scaled(layer, {"0": 0.25}):
        assert layer(x).item() == 16
    assert layer(x).item() == 4


def test_a_folded_scaler_computes_the_same_without_it() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
    )
    x = torch.randn(5, 1, 4, 4)
    network(x)
    rates = {"0": 0.5, "3": 0.2}
    with scaled(network, rates):
        expected = network(x)
    fold_scaler(network, rates)
    assert_close(network(x), expected)
