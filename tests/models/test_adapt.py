"""Networks become extractors: the representation is found, projected, frozen, loaded."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn

from fedgh.errors import ConfigError
from fedgh.models import extractor
from fedgh.models.adapt import NetworkExtractor, adapt
from fedgh.models.pixels import Pixels

SHAPE = (3, 8, 8)


class Classifier(nn.Module):
    """A network like most published ones: features, pooling, and a classifier at the end."""

    def __init__(self, head: str = "fc", classes: int = 5) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.add_module(head, nn.Linear(6, classes))
        self.last = head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(self.last)(self.features(x).mean((2, 3)))
        return out


def batch(n: int = 4, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("network", "head", "width"),
    [
        (Classifier("fc", 1000), "fc", 6),
        (Classifier("classifier", 1000), "classifier", 6),
        (Classifier("scores", 5), "scores", 6),  # one output per class
        (Classifier("scores", 7), None, 7),
        (Classifier("fc", 9), None, 9),  # width rep_dim
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Linear(20, 5)), "3", 20),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU()), None, 4),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(20), nn.ReLU(), nn.LazyLinear(5)), "3", 20),
        (nn.Conv2d(3, 12, 3), None, 12),
    ],
)
def test_head_and_width_of_the_representation_are_found(
    network: nn.Module, head: str | None, width: int
) -> None:
    found = NetworkExtractor(network, SHAPE, classes=5, rep_dim=9)
    assert (found.head, found.width) == (head, width)
    assert found(SHAPE, 16)(batch()).shape == (4, 16)


def test_the_extractor_returns_the_input_of_the_head() -> None:
    network = Classifier().eval()
    found = adapt(network, SHAPE, 6).eval()
    expected = network.features(batch()).mean((2, 3))
    assert found(batch()).equal(expected)
    assert not any("fc" in name for name in found.state_dict())
    assert network.fc is not None, "the network that was given is left alone"


def test_an_extractor_is_used_without_changes() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU())
    assert adapt(network, SHAPE, 6).state_dict().keys() == network.state_dict().keys()
    assert adapt(nn.Conv2d(3, 6, 3), SHAPE, 6)(batch()).shape == (4, 6), "this one gives maps"


def test_the_output_of_a_named_layer_is_the_representation() -> None:
    network = Classifier().eval()
    found = NetworkExtractor(network, SHAPE, layer="features.0")
    assert found.width == 6
    expected = network.features[0](batch()).flatten(2).mean(2)
    assert torch.allclose(found(SHAPE, 6).eval()(batch()), expected)
    with pytest.raises(ConfigError, match=r"has no layer 'features.9'; the last are .*fc"):
        NetworkExtractor(network, SHAPE, layer="features.9")(SHAPE, 6)


def test_a_frozen_network_does_not_change() -> None:
    model = adapt(Classifier(), SHAPE, 4, frozen=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trainable == ["projection.weight", "projection.bias"]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.train()
    model(batch()).square().sum().backward()
    optimizer.step()
    changed = {
        name for name, tensor in model.state_dict().items() if not tensor.equal(before[name])
    }
    assert changed == set(trainable), "not even the statistics of the batch normalisation"


def test_weights_are_loaded_from_a_file(tmp_path: Path) -> None:
    trained = Classifier(classes=1000).eval()
    path = tmp_path / "weights.safetensors"
    save_file(trained.state_dict(), path)
    # The head in the file has other classes, and is ignored.
    found = adapt(Classifier(classes=5), SHAPE, 6, weights=path).eval()
    assert found(batch()).equal(trained.features(batch()).mean((2, 3)))
    state = trained.state_dict()
    state["features.0.weight"] = torch.zeros(6, 3, 5, 5)
    del state["features.0.bias"]
    save_file({**state, "extra": torch.zeros(1)}, path)
    with pytest.raises(
        ConfigError, match=r"features.0.bias is missing; extra is not in .*\[6, 3, 5"
    ):
        adapt(Classifier(), SHAPE, 6, weights=path)
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="not a readable safetensors file"):
        adapt(Classifier(), SHAPE, 6, weights=path)


def test_a_shared_tensor_may_have_one_name_in_a_file(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.there, self.back = nn.Linear(4, 4), nn.Linear(4, 4)
            self.back.weight = self.there.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.back(self.there(x))
            return out

    trained, path, x = Tied(), tmp_path / "tied.safetensors", torch.randn(2, 4)
    save_model(trained, str(path))
    assert adapt(Tied(), (4,), 4, weights=path)(x).equal(trained(x))
    found = load_file(path)
    save_file({name: tensor for name, tensor in found.items() if "weight" not in name}, path)
    with pytest.raises(ConfigError, match=r"there.weight is missing; back.weight is missing"):
        adapt(Tied(), (4,), 4, weights=path)


def test_parameters_that_are_not_float32_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"Linear: weight is float64.*call \.float\(\) on it"):
        adapt(nn.Linear(4, 4).double(), (4,), 4)


def test_pixels_scales_and_normalises_images() -> None:
    white = torch.ones(2, 3, 8, 8)
    out = Pixels(size=16)(white)
    assert out.shape == (2, 3, 16, 16)
    expected = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(out[0, :, 5, 5], expected)
    assert Pixels()(torch.ones(2, 1, 8, 8)).shape == (2, 3, 8, 8), "grey becomes colour"
    found = NetworkExtractor(Classifier(), (1, 8, 8), transform=Pixels())
    assert found(SHAPE, 6)(batch(shape=(1, 8, 8))).shape == (4, 6)


def test_unsuitable_networks_are_rejected_with_a_reason() -> None:
    with pytest.raises(ConfigError, match=r"Classifier fails on inputs of shape \(4,\)"):
        _ = NetworkExtractor(Classifier(), (4,)).width
    with pytest.raises(ConfigError, match="returns a str instead of a tensor"):
        _ = NetworkExtractor(ReturnsText(), SHAPE).width


class ReturnsText(nn.Module):
    def forward(self, x: Tensor) -> str:
        return "cat"


class Alias(nn.Module):
    """A network whose head has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(20, 10)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), self.fc)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Twice(nn.Module):
    """A network that uses its last layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 192)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.fc(x.flatten(1)).relu())
        return out


class Auxiliary(nn.Module):
    """A network with an auxiliary output in train mode, as some published networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 6)

    def forward(self, x: Tensor) -> Any:
        out = self.layer(x.flatten(1)).relu()
        return (out, out) if self.training else out


def test_a_head_with_two_names_is_removed_under_both() -> None:
    found = NetworkExtractor(Alias(), SHAPE)
    assert (found.head, found.width) == ("fc", 20)
    assert "the input of 'fc'" in found.representation


def test_a_network_may_return_more_outputs_in_train_mode() -> None:
    assert adapt(Auxiliary(), SHAPE, 6).train()(batch()).shape == (4, 6)


@pytest.mark.parametrize(
    ("network", "shape", "problem"),
    [
        (Twice(), SHAPE, "uses its last layer 'fc' more than once; name in `layer`"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.LogSoftmax(1)),
            SHAPE,
            "returns one number per class; name in `layer`",
        ),
        (nn.Conv1d(4, 16, 3), (4, 50), r"returns \(2, 16, 48\) instead of a vector"),
        (nn.LSTM(4, 16), (7, 4), "mixes the samples of a batch"),
    ],
)
def test_an_ambiguous_representation_needs_a_layer(
    network: nn.Module, shape: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        _ = NetworkExtractor(network, shape, classes=5).width
    assert NetworkExtractor(nn.LSTM(4, 16, batch_first=True), (7, 4)).width == 16


def test_the_digest_depends_on_weights_and_function() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU())
    other = nn.Sequential(nn.Flatten(), one[1], nn.Tanh())
    digests = {
        NetworkExtractor(one, SHAPE).digest,
        NetworkExtractor(one, SHAPE, frozen=True).digest,
        NetworkExtractor(one, SHAPE, layer="1").digest,
        NetworkExtractor(one, SHAPE, transform=lambda x: -100 * x).digest,
        NetworkExtractor(other, SHAPE).digest,
        NetworkExtractor(Classifier(), SHAPE).digest,
        NetworkExtractor(Classifier(), SHAPE).digest,
    }
    assert len(digests) == 7
    assert NetworkExtractor(one, SHAPE).digest == NetworkExtractor(one, SHAPE).digest


def test_a_pickled_extractor_contains_no_shared_tensors() -> None:
    sent = NetworkExtractor(Classifier(), SHAPE, frozen=True)
    assert sent.width == 6
    state = sent.__getstate__()
    assert [type(value) for value in state.values()] == [bytes]
    assert copy.copy(sent).digest == sent.digest


def test_networks_of_transformers_are_adapted(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    for network in (transformers.ViTModel(config), transformers.ViTForImageClassification(config)):
        found = NetworkExtractor(network, SHAPE)
        assert found.width == 16
        assert found(SHAPE, 6)(batch()).shape == (4, 6)
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    assert extractor(f"transformers/{tmp_path}/vit")(SHAPE, 6)(batch()).shape == (4, 6)
    words = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    found = NetworkExtractor(words, (7,), transform=Tensor.long)
    assert found(SHAPE, 6)(torch.full((4, 7), 3.0)).shape == (4, 6)


@pytest.mark.parametrize(("library", "name"), [("timm", "resnet10t"), ("torchvision", "resnet18")])
def test_networks_of_timm_and_torchvision_are_adapted(library: str, name: str) -> None:
    try:
        __import__(library)
    except (ImportError, RuntimeError) as error:
        with pytest.raises(ConfigError, match=f"needs {library}: pip install {library}"):
            extractor(f"{library}/{name}")((3, 32, 32), 6)
        pytest.skip(f"{library}: {error}")
    made: Any = extractor(f"{library}/{name}")((3, 32, 32), 6)
    assert made.eval()(batch(shape=(3, 32, 32))).shape == (4, 6)
    assert made.body.network is not None
    with pytest.raises(ConfigError, match=f"{library} cannot make 'resnet19t'"):
        extractor(f"{library}/resnet19t")((3, 32, 32), 6)
