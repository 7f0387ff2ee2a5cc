"""Methods learn: on the embedded digits, and on CIFAR-10 if the data are on this machine."""

from pathlib import Path

import pytest

from fedgh import config
from fedgh.data import fetch
from fedgh.methods import METHODS
from fedgh.training import loop
from fedgh.training.experiment import prepare


def test_the_demo_learns(tmp_path: Path) -> None:
    run = loop.run(prepare(config.load("demo")), tmp_path / "run")
    summary = run.summary()
    assert summary is not None
    assert (summary.accuracy or 0) > 0.9
    assert summary.bytes_per_client_round == 24_048
    assert summary.paper_bytes_per_client_round == 24_008


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"fedgh"}))
def test_every_method_learns_with_the_settings_of_the_demo(name: str, tmp_path: Path) -> None:
    few_steps = {"fedzkt": ["method.server_steps=10", "method.server_batch=32"]}  # else an hour
    alike = METHODS[name]().same_part != "none"
    networks = ["model.extractors=cnn1"] if alike else []
    public = METHODS[name]().public_for != "none"
    shared = ["public.name=held-out", "public.samples=200"] if public else []
    overrides = [f"method.name={name}", "run.engine=serial", *networks, *shared]
    overrides += few_steps.get(name, [])
    settings = config.load("demo", overrides)
    run = loop.run(prepare(settings), tmp_path / "run")
    assert (run.records()[-1].accuracy or 0) > 0.85


def test_global_accuracy_shows_what_a_client_knows_of_other_classes(tmp_path: Path) -> None:
    settings = config.load(
        "demo",
        [
            *("federation.rounds=6", "model.extractors=cnn5", "run.global_accuracy=last"),
            *("method.name=standalone", "local.momentum=0.9"),
        ],
    )
    run = loop.run(prepare(settings), tmp_path / "run")
    last = run.records()[-1]
    # A client that trains alone knows at best two of ten classes.
    assert (last.accuracy or 0) > 0.8
    assert 0.1 < (last.scores["global_accuracy"] or 0) <= 0.21
    assert len(last.per_client["global_accuracy"] or []) == 10


def cifar10_folder() -> bool:
    official = fetch.OFFICIAL["cifar10"]
    return any(
        all((place / official.folder / file).is_file() for file in official.files)
        for place in fetch.data_folders(None)
    )


@pytest.mark.skipif(
    not cifar10_folder(), reason="no CIFAR-10 here: fedgh data fetch cifar10, or set FEDGH_DATA"
)
def test_two_rounds_of_cifar10_beat_chance(tmp_path: Path) -> None:
    words = ["federation.rounds=2", "federation.participation=0.4", "local.epochs=1"]
    settings = config.load("cifar10-hetero", [*words, "run.evaluate=trained"])
    run = loop.run(prepare(settings), tmp_path / "run")
    # Every client tells two classes apart, so chance is 1/2; over four test sets of about 600
    # images the standard error of the mean is about 0.01.
    assert (run.records()[-1].accuracy or 0) > 0.55
    assert run.records()[-1].bytes_total == 2 * 4 * 24_048
