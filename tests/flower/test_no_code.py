"""Clients that write no code: node.conf names their data and networks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgh.core.types import Task
from fedgh.data.sources import DataLocation, digits
from fedgh.errors import FedghError, RunError
from fedgh.flower.own_data import OwnData, make_client
from tests.flower.local import FIRST_NODE, LocalFederation
from tests.support.tiny import quick

APP = "fedgh.flower.own_data:app"
TASK = Task(num_classes=3, rep_dim=8, num_clients=1, rounds=1, seed=0)


def write_images(folder: Path, classes: str, size: int, count: int = 40) -> Path:
    """Write images of some digits, scaled to a size, into a sub-folder for each class."""
    source = digits(DataLocation())
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(source.x[source.y == int(name)][:count]):
            image = Image.fromarray(pixels[0].numpy()).resize((size, size))
            image.save(folder / name / f"{number}.png")
    return folder


def site(federation: LocalFederation, k: int, **settings: Any) -> None:
    """Set the settings of a client's node.conf."""
    node = federation.grid.nodes[FIRST_NODE + k]
    own = {**node.config, "app": APP, **settings}
    federation.grid.nodes[FIRST_NODE + k] = replace(node, config=own)


@pytest.fixture
def federation(tmp_path: Path, impatient: None) -> LocalFederation:
    settings = ["data.name=private", "data.classes=0,1,2", "federation.clients=3", "local.lr=0.1"]
    learns = ["model.rep_dim=8", "local.batch_size=8", "local.epochs=4"]
    return LocalFederation(tmp_path / "federation", quick(*settings, *learns))


def test_three_sites_with_images_of_different_sizes_and_networks_by_name_train(
    federation: LocalFederation, tmp_path: Path
) -> None:
    networks = {"mlp": 8, "perceptron": 16, "resnet18@1/64": 12}
    for k, (network, size) in enumerate(networks.items()):
        folder = write_images(tmp_path / f"site-{k}", "012", 8 * (k + 1))
        site(federation, k, **{"path": str(folder), "network": network, "image-size": size})
    run = federation.run()
    assert all(not record.failed for record in run.records())
    assert (run.records()[-1].accuracy or 0) > 0.7


def test_an_npz_file_may_have_the_data(federation: LocalFederation, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = rng.normal(3 * np.eye(3)[y], 1.0).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    for k in range(3):
        site(federation, k, path=str(tmp_path / "own.npz"), network="mlp")
    assert (federation.run().records()[-1].accuracy or 0) > 0.7


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"path": "images"}, "node.conf: network: Field required"),
        ({"network": "mlp"}, "node.conf: path: Field required"),
        ({"path": "images", "network": "mlp", "image-size": "big"}, "node.conf: image-size: "),
        ({"path": "images", "network": "mlp", "image-size": True}, "node.conf: image-size: "),
        ({"path": "images", "network": "mpl"}, "no extractor 'mpl'; did you mean 'mlp'"),
        ({"path": "images", "network": "cnn5", "image_size": 16}, "the CNNs take 32x32 images"),
        ({"path": "nothing", "network": "mlp"}, "nothing does not exist"),
    ],
)
def test_wrong_settings_are_reported(
    settings: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images", "01", 8, count=2)
    with pytest.raises(FedghError, match=problem):
        make_client(TASK, {"client": 0, **settings})


def test_the_spelling_of_keys_is_lenient_and_other_settings_are_ignored() -> None:
    own = OwnData.of({"Path": "a", "network": "mlp", "image_size": "16", "client": 3, "state": "s"})
    assert own == OwnData.of({"path": "a", "network": "mlp", "image-size": 16})


def test_classes_that_the_federation_does_not_have_are_reported(
    federation: LocalFederation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_images(tmp_path / "images", "019", 8)
    for k in range(3):
        site(federation, k, path=str(folder), network="mlp")
    with pytest.raises(RunError, match="network or data do not fit this federation"):
        federation.run()
    assert "image-folder: class '9' is not one of 0, 1, 2" in caplog.text
