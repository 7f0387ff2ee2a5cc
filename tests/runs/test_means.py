"""Class means are stored for a few rounds, and deleted with rounds that are dropped."""

from pathlib import Path

import pytest
import torch

from fedgh import config
from fedgh.core.types import Upload
from fedgh.runs.folder import RunFolder
from fedgh.runs.means import MAX_PAIRS, MAX_ROUNDS, MeansCollector, stores_means
from fedgh.training import loop
from fedgh.training.experiment import prepare

QUICK = ["federation.rounds=3", "federation.clients=4", "data.classes_per_client=5"]
QUICK += ["model.extractors=perceptron", "model.rep_dim=8", "local.epochs=1", "run.engine=serial"]


def run_method(path: Path, method: str) -> RunFolder:
    return loop.run(prepare(config.load("demo", [*QUICK, f"method.name={method}"])), path)


def test_means_are_stored_in_the_first_and_last_round_and_some_between() -> None:
    for rounds in (1, 3, 20, 21, 100, 500):
        chosen = [r for r in range(1, rounds + 1) if stores_means(r, rounds)]
        assert chosen[0] == 1
        assert chosen[-1] == rounds
        assert min(rounds, MAX_ROUNDS // 2) <= len(chosen) <= MAX_ROUNDS + 2


@pytest.mark.parametrize(("method", "width"), [("fedgh", 8), ("fedproto", 8), ("fd", 10)])
def test_the_class_means_that_the_server_received_are_stored(
    tmp_path: Path, method: str, width: int
) -> None:
    run = run_method(tmp_path / "run", method)
    assert list(run.means()) == [1, 2, 3]
    stored = run.means()[3]
    assert stored["means"].shape == (20, width)
    assert stored["clients"].tolist() == [client for client in range(4) for _ in range(5)]
    names = run.identity().classes
    assert [
        {names[int(c)] for c in stored["classes"][stored["clients"] == client]}
        for client in range(4)
    ] == [set(client.classes) for client in run.clients()]


def test_nothing_is_stored_for_a_method_without_class_means(tmp_path: Path) -> None:
    assert run_method(tmp_path / "run", "standalone").means() == {}


def upload(client: int, pairs: int, width: int = 3) -> Upload:
    classes = torch.arange(pairs, dtype=torch.int32)
    return Upload(client, 0, {"classes": classes, "means": torch.zeros(pairs, width)})


def test_uploads_that_are_not_class_means_are_ignored() -> None:
    collector = MeansCollector()
    collector.add(upload(0, 2))
    collector.add(upload(1, 2, width=4))  # a user's own method may send this
    collector.add(Upload(2, 0, {"classes": torch.tensor(1), "means": torch.zeros(3)}))
    collector.add(Upload(3, 0, {"classes": torch.zeros(2), "means": torch.zeros(2, 3)}))
    collector.add(Upload(4, 0, {"means": torch.zeros(2, 3)}))
    assert collector.payload()["clients"].tolist() == [0, 0]


def test_the_number_of_stored_means_is_limited() -> None:
    collector = MeansCollector()
    for client in range(4):
        collector.add(upload(client, MAX_PAIRS // 3))
    assert len(collector.payload()["means"]) == MAX_PAIRS


def test_rewind_deletes_the_means_of_later_rounds(tmp_path: Path) -> None:
    run = run_method(tmp_path / "run", "fedgh")
    run.keep_means(7, {"means": torch.zeros(1)})
    run.rewind()
    assert list(run.means()) == [1, 2, 3]
