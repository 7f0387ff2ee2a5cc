"""Loaded models predict as in the run, with its data and without."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgh import config
from fedgh.core.batches import to_input
from fedgh.errors import DataError, FedghError, RunError
from fedgh.report.write import write_report
from fedgh.runs.folder import RunFolder
from fedgh.trained.clients import TrainedFederation
from fedgh.training import loop, restore
from fedgh.training.experiment import prepare
from fedgh.trust import OWN
from tests.support.tiny import QUICK, mlp
from tests.trained.parts import CLASSES, copied, edit_json, images


def took_part(run: Path) -> list[int]:
    records = RunFolder(run).records()
    return sorted({client for record in records for client in record.participants})


def test_accuracy_of_predictions_equals_that_of_the_record(run: Path) -> None:
    trained = TrainedFederation.load(run, data=True, trust=True)
    scores = RunFolder(run).records()[-1].accuracies
    assert trained.checkpoint.took_part == took_part(run)
    for number in took_part(run):
        client = trained.clients[number]
        test = client.loaded.client.data.test
        predicted = client.predict(test.x[test.index])
        right = [CLASSES[label] == name for label, name in zip(test.labels, predicted, strict=True)]
        assert sum(right) / len(right) == scores[number] == client.accuracy


def test_logits_equal_those_of_the_model(run: Path) -> None:
    client = TrainedFederation.load(run, trust=True).clients[took_part(run)[0]]
    x = images(600).x  # more than fit into one batch
    assert not client.model.training
    with torch.no_grad():
        expected = torch.cat([client.model(to_input(x[row : row + 1])) for row in range(600)])
    logits = client.logits(x)
    torch.testing.assert_close(logits, expected)
    assert logits.add_(1).sum().isfinite(), "a tensor like any other"
    shares = client.probabilities(x.numpy())
    torch.testing.assert_close(shares, expected.exp() / expected.exp().sum(1, keepdim=True))
    assert client.predict(x) == [CLASSES[label] for label in expected.argmax(1)]


def test_models_are_loaded_without_the_data(run: Path, tmp_path: Path) -> None:
    alone = TrainedFederation.load(copied(run, tmp_path / "alone"), trust=True)
    whole = TrainedFederation.load(run, data=True, trust=True)
    x = images(20).x
    for number in took_part(run):
        assert alone.clients[number].logits(x).equal(whole.clients[number].logits(x))
    with pytest.raises(FedghError, match=r"gone\.npz does not exist"):
        restore.load(alone.folder, trust=OWN)
    without = TrainedFederation.load(alone.folder.path, data=True, trust=True)
    assert not len(without.clients[number].loaded.client.data.test)


def test_clients_have_number_network_and_classes(run: Path) -> None:
    trained = TrainedFederation.load(run, trust=True)
    known = json.loads((run / "clients.json").read_text())
    assert len(trained.clients) == 5
    assert trained.class_names == CLASSES
    for client, about in zip(trained.clients, known, strict=True):
        assert client.number == about["client"]
        assert client.network == about["extractor"]
        assert client.classes == list(about["classes"])
    number = took_part(run)[0]
    assert str(trained.clients[number].inputs) == "uint8 [n, 1, 8, 8]"
    assert str(number) in repr(trained.clients[number])


def test_a_client_is_found_by_number_and_by_name(run: Path, tmp_path: Path) -> None:
    path = copied(run, tmp_path / "named")
    trained = TrainedFederation.load(path, trust=True)
    assert trained.clients["3"].number == trained.clients[3].number == 3
    assert trained.clients[-1].number == 4
    assert [client.number for client in trained.clients[1:3]] == [1, 2]
    for wrong in (5, -6, "5", "-1", "north"):
        with pytest.raises(FedghError, match=rf"no client {wrong}; they are 0 to 4$"):
            trained.clients[wrong]
    known = json.loads((path / "clients.json").read_text())
    names = ["north", "", "east", "west", "2"]
    named = [{**about, "name": name} for about, name in zip(known, names, strict=True)]
    (path / "clients.json").write_text(json.dumps(named))
    trained = TrainedFederation.load(path, trust=True)
    assert trained.clients["west"].number == 3
    assert trained.clients[3].name == "west"
    assert repr(trained.clients[3]).startswith("<client 3 west: ")
    assert trained.clients["2"].number == 4, "a name takes precedence over a number"
    assert trained.clients[2].number == 2
    with pytest.raises(FedghError, match="did you mean 'north'"):
        trained.clients["nort"]


def test_a_client_that_never_took_part_has_no_model(run: Path) -> None:
    trained = TrainedFederation.load(run, trust=True)
    (absent, *_) = set(range(5)) - set(took_part(run))
    with pytest.raises(RunError, match=f"client {absent} took part in none of the 2 rounds"):
        trained.clients[absent].predict(images(3).x)
    assert trained.clients[absent].accuracy is not None, "it was evaluated with its initial model"


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (torch.zeros(2, 1, 8, 8), r"float32 \[2, 1, 8, 8\]"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"uint8 \[2, 3, 8, 8\]"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), r"bytes of shape \(1, 8, 8\) are ambiguous"),
        (np.zeros((0, 1, 8, 8), np.uint8), r"\(0, 1, 8, 8\)"),
        ([[1, 2], [3]], "different shapes"),
        ("cat.png", "should be numbers"),
        (7, r"inputs should be \[samples"),
    ],
)
def test_unsuitable_inputs_are_rejected(run: Path, x: object, got: str) -> None:
    client = TrainedFederation.load(run, trust=True).clients[took_part(run)[0]]
    with pytest.raises(DataError, match=rf"expected uint8 \[n, 1, 8, 8\], got .*{got}"):
        client.predict(x)  # type: ignore[arg-type]


def test_clients_of_tables_accept_any_real_numbers(table_run: Path) -> None:
    client = TrainedFederation.load(table_run, trust=True).clients[0]
    x = np.arange(10).reshape(2, 5)
    assert client.logits(x).equal(client.logits(torch.tensor(x, dtype=torch.float32)))
    assert client.logits(x[:, ::-1].tolist()).equal(client.logits(x[:, ::-1]))
    with pytest.raises(DataError, match="not finite"):
        client.predict(np.full((2, 5), 1e300))
    with pytest.raises(DataError, match=r"float32 \[n, 5\], got other inputs: .* complex"):
        client.predict(np.zeros((2, 5), complex))


def test_history_equals_the_records(run: Path) -> None:
    history = TrainedFederation.load(run, trust=True).history
    records = RunFolder(run).records()
    for key in ("round", "accuracy", "validation_accuracy", "train_loss", "bytes_up", "bytes_down"):
        assert history[key].tolist() == [record.model_dump()[key] for record in records]
    last = records[-1].scores["global_accuracy"]
    assert history["global_accuracy"].tolist() == [pytest.approx(np.nan, nan_ok=True), last]
    assert history["bytes_total"].tolist()[-1] == records[-1].bytes_total
    assert history["seconds"].tolist() == [record.seconds["total"] for record in records]
    assert history["participants"].tolist() == [2, 2]
    assert history["failed"].tolist() == history["rejected"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "int7"}, "not what a run writes"),
        ({"shape": [1, -8, 8]}, "not what a run writes"),
        ({"dtype": ""}, "not what a run writes"),
        ({"shape": [1, 9, 9]}, "does not fit its current network"),
        ({"classes": ["cat"]}, "does not fit its current network"),
    ],
)
def test_a_changed_data_json_is_rejected(
    run: Path, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    path = copied(run, tmp_path / "changed")
    edit_json(path / "data.json", **changes)
    with pytest.raises(RunError, match=reason) as caught:
        _ = TrainedFederation.load(path, trust=True).clients[took_part(run)[0]].model
    assert "\n" not in str(caught.value)


def test_fewer_clients_than_configured_are_rejected(run: Path, tmp_path: Path) -> None:
    path = copied(run, tmp_path / "fewer")
    (path / "clients.json").write_text("[]")
    with pytest.raises(RunError, match=r"clients\.json is not what a run writes"):
        _ = TrainedFederation.load(path, trust=True).clients[0]


def test_only_the_network_of_the_used_client_is_imported(run: Path, tmp_path: Path) -> None:
    """Clients 0, 2 and 4 have the first network, 1 and 3 the second."""
    path = copied(run, tmp_path / "elsewhere")
    settings = path / "config.toml"
    settings.write_text(settings.read_text().replace("tests.support.tiny:noisy", "of_others:net"))
    trained = TrainedFederation.load(path, trust=True)
    x = images(3).x
    assert {number % 2 for number in took_part(run)} == {0, 1}
    for number in took_part(run):
        if number % 2:
            with pytest.raises(FedghError, match="cannot import 'of_others:net'"):
                trained.clients[number].predict(x)
        else:
            assert len(trained.clients[number].predict(x)) == 3


def test_a_run_with_networks_given_in_python_is_loaded_with_them(tmp_path: Path) -> None:
    settings = config.load("demo", [*QUICK, "data.partition=iid", "federation.rounds=1"])
    source = images(60)
    nets = [lambda shape, rep_dim: mlp(shape, rep_dim)]
    folder = loop.run(prepare(settings, source=source, extractors=nets), tmp_path / "objects")
    checkpoint = restore.load_with(folder, prepare(settings, source=source, extractors=nets))
    client = TrainedFederation(folder, lambda: checkpoint).clients[1]
    assert client.accuracy == folder.records()[-1].accuracies[1]
    assert len(client.predict(source.x)) == 60
    with pytest.raises(FedghError, match="cannot import"):
        TrainedFederation.load(folder.path, trust=True).clients[1].predict(source.x)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("flower.json", "on the clients' machines"),
        ("checkpoint", "has no checkpoint/, so its models are missing"),
        ("config.toml", "is not a run folder"),
        ("private", "on the clients' machines"),
    ],
)
def test_missing_models_are_reported(run: Path, tmp_path: Path, what: str, reason: str) -> None:
    path = copied(run, tmp_path / "run")
    if what == "flower.json":
        (path / what).write_text("{}")
    elif what == "private":
        private = 'name = "private"\nclasses = ["cat", "dog", "owl"]'
        text = (path / "config.toml").read_text()
        (path / "config.toml").write_text(text.replace('name = "npz"', private))
    else:
        (path / what).rename(path / "away")
    for data in (False, True):
        with pytest.raises(RunError, match=reason):
            _ = TrainedFederation.load(path, data=data, trust=True).clients[0].model


def test_history_and_accuracies_need_no_models(run: Path, tmp_path: Path) -> None:
    path = copied(run, tmp_path / "words")
    (path / "checkpoint").rename(path / "away")
    trained = TrainedFederation.load(path, trust=True)
    assert (
        trained.history["accuracy"].tolist()
        == TrainedFederation.load(run, trust=True).history["accuracy"].tolist()
    )
    assert [client.accuracy for client in trained.clients] == [
        client.accuracy for client in TrainedFederation.load(run, trust=True).clients
    ]


def test_a_report_without_data_has_no_confusion_matrix(run: Path, tmp_path: Path) -> None:
    path = copied(run, tmp_path / "without")
    page = write_report(TrainedFederation.load(path, trust=True)).read_text()
    assert "gone.npz does not exist" in page
    assert not (path / "confusion.json").exists()
