"""Class means are kept for a few rounds, and forgotten with the rounds they belong to."""

from pathlib import Path

import pytest
import torch

from fedgh import config
from fedgh.core.types import Upload
from fedgh.runs.folder import RunFolder
from fedgh.runs.means import MAX_PAIRS, MAX_ROUNDS, Album, worth_keeping
from fedgh.training import loop
from fedgh.training.experiment import prepare

QUICK = ["federation.rounds=3", "federation.clients=4", "data.classes_per_client=5"]
QUICK += ["model.extractors=perceptron", "model.rep_dim=8", "local.epochs=1", "run.engine=serial"]


def kept(path: Path, method: str) -> RunFolder:
    return loop.run(prepare(config.load("demo", [*QUICK, f"method.name={method}"])), path)


def test_first_last_and_some_between() -> None:
    for rounds in (1, 3, 20, 21, 100, 500):
        chosen = [r for r in range(1, rounds + 1) if worth_keeping(r, rounds)]
        assert chosen[0] == 1
        assert chosen[-1] == rounds
        assert min(rounds, MAX_ROUNDS // 2) <= len(chosen) <= MAX_ROUNDS + 2


@pytest.mark.parametrize(("method", "width"), [("fedgh", 8), ("fedproto", 8), ("fd", 10)])
def test_what_the_server_received_is_kept(tmp_path: Path, method: str, width: int) -> None:
    run = kept(tmp_path / "run", method)
    assert list(run.means()) == [1, 2, 3]
    pictures = run.means()[3]
    assert pictures["means"].shape == (20, width)
    assert pictures["clients"].tolist() == [client for client in range(4) for _ in range(5)]
    names = run.identity().classes
    assert [
        {names[int(c)] for c in pictures["classes"][pictures["clients"] == client]}
        for client in range(4)
    ] == [set(client.classes) for client in run.clients()]


def test_a_method_without_class_means_leaves_nothing(tmp_path: Path) -> None:
    assert kept(tmp_path / "run", "standalone").means() == {}


def upload(client: int, pairs: int, width: int = 3) -> Upload:
    classes = torch.arange(pairs, dtype=torch.int32)
    return Upload(client, 0, {"classes": classes, "means": torch.zeros(pairs, width)})


def test_what_does_not_look_like_class_means_is_left_alone() -> None:
    album = Album()
    album.add(upload(0, 2))
    album.add(upload(1, 2, width=4))  # a user's own method may do that
    album.add(Upload(2, 0, {"classes": torch.tensor(1), "means": torch.zeros(3)}))
    album.add(Upload(3, 0, {"classes": torch.zeros(2), "means": torch.zeros(2, 3)}))
    album.add(Upload(4, 0, {"means": torch.zeros(2, 3)}))
    assert album.payload()["clients"].tolist() == [0, 0]


def test_of_very_many_some_are_kept() -> None:
    album = Album()
    for client in range(4):
        album.add(upload(client, MAX_PAIRS // 3))
    assert len(album.payload()["means"]) == MAX_PAIRS


def test_rewinding_forgets_them(tmp_path: Path) -> None:
    run = kept(tmp_path / "run", "fedgh")
    run.keep_means(7, {"means": torch.zeros(1)})
    run.rewind()
    assert list(run.means()) == [1, 2, 3]
