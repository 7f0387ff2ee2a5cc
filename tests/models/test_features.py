"""Feature maps: equal for equal arguments, and independent of the batch."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedgh.core.moments import in_steps
from fedgh.errors import ConfigError
from fedgh.models.features import ConvFeatures, feature_map, fingerprint

SHAPES = [(3, 32, 32), (1, 28, 28), (1, 4, 5), (7,), (12, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_inputs_of_any_shape_have_features(shape: tuple[int, ...]) -> None:
    features = feature_map("auto", "", 32, shape, 0)
    x = torch.randn(6, *shape)
    assert features(x).shape == (6, 32)
    assert features(x).isfinite().all()
    assert features(torch.zeros(2, *shape)).isfinite().all()  # a flat image


@pytest.mark.parametrize("shape", SHAPES)
def test_a_feature_vector_does_not_depend_on_its_batch(shape: tuple[int, ...]) -> None:
    """Therefore moments do not depend on the partition, to the bit."""
    features = feature_map("auto", "", 64, shape, 0)
    x = torch.randn(40, *shape).double()
    whole = in_steps(features(x))
    one_by_one = torch.cat([in_steps(features(row[None])) for row in x])
    assert whole.equal(one_by_one)


def test_the_seed_determines_the_map() -> None:
    one, same, other = (
        fingerprint(feature_map("conv", "", 16, (3, 8, 8), seed)) for seed in (1, 1, 2)
    )
    assert one.equal(same)
    assert not one.equal(other)
    made_again = ConvFeatures((3, 8, 8), 16, torch.Generator().manual_seed(0))
    assert not fingerprint(made_again).equal(one)


@pytest.mark.parametrize(("name", "shape"), [("conv", (3, 32, 32)), ("relu", (7,))])
def test_the_number_of_threads_does_not_change_a_map(name: str, shape: tuple[int, ...]) -> None:
    maps = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            feature_map.cache_clear()
            maps.append(feature_map(name, "", 512, shape, 0))
        finally:
            torch.set_num_threads(1)
    one, two = maps
    assert one is not two
    assert fingerprint(one).equal(fingerprint(two))


def test_features_of_a_shifted_and_scaled_image_are_the_same() -> None:
    features = feature_map("conv", "", 16, (3, 16, 16), 0)
    x = torch.rand(4, 3, 16, 16).double() * 2 - 1
    far = (features(0.5 * x + 0.25) - features(x)).abs().max() / features(x).max()
    assert far < 0.1  # but for what keeps flat images flat


def test_a_named_network_is_used_as_map(tmp_path: Path) -> None:
    features = feature_map("tests.support.tiny:mlp", "", 16, (3, 4, 4), 0)
    assert features(torch.randn(2, 3, 4, 4).double()).dtype == torch.float64
    weights = {"1.weight": torch.ones(16, 48), "1.bias": torch.zeros(16)}
    save_file(weights, tmp_path / "w.safetensors")
    loaded = feature_map(
        "tests.support.tiny:mlp", str(tmp_path / "w.safetensors"), 16, (3, 4, 4), 0
    )
    assert loaded(torch.ones(1, 3, 4, 4)).tolist() == [[48.0] * 16]
    assert not fingerprint(loaded).equal(fingerprint(features))
    assert not any(p.requires_grad for p in loaded.parameters())


def test_impossible_maps_are_rejected_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="multiple of 8"):
        feature_map("conv", "", 12, (3, 8, 8), 0)
    with pytest.raises(ConfigError, match="'conv' is for images"):
        feature_map("conv", "", 16, (8,), 0)
    with pytest.raises(ConfigError, match="inputs of one shape"):
        feature_map("auto", "", 16, (), 0)
    with pytest.raises(ConfigError, match="has no weights to load"):
        feature_map("relu", "w.safetensors", 16, (8,), 0)
    with pytest.raises(ConfigError, match="cannot be read"):
        feature_map("tests.support.tiny:mlp", str(tmp_path / "no"), 16, (3, 4, 4), 0)
    with pytest.raises(ConfigError, match="cnn9"):
        feature_map("cnn9", "", 16, (3, 32, 32), 0)


def test_a_map_has_no_trainable_parameters() -> None:
    features = feature_map("mlp", "", 16, (1, 8, 8), 0)
    assert isinstance(features, nn.Module)
    assert not features.training
