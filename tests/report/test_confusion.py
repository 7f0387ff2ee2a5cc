"""The confusion matrix is measured from the checkpoint, and agrees with the records of the run."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from fedgh import config
from fedgh.errors import FedghError
from fedgh.runs.folder import RunFolder
from fedgh.trained import confusion
from fedgh.training.experiment import prepare
from fedgh.trust import OWN


def test_the_confusion_matrix_agrees_with_the_last_record_and_brute_force(
    folders: list[Path],
) -> None:
    for path in folders:
        run = RunFolder.open(path)
        measured = confusion.measure(run, trust=OWN)
        accuracies = [
            right / tested for right, tested in zip(measured.right, measured.tested, strict=True)
        ]
        assert accuracies == run.records()[-1].accuracies

        blueprint = prepare(config.load(run.config)).blueprint()
        files = run.client_files(3)
        counts: Counter[tuple[int, int]] = Counter()
        for number in range(5):
            client = blueprint.make(number)
            state = files.load(number)
            assert state is not None
            client.load(state)
            client.model.eval()
            test = client.data.test
            for row in test.index.tolist():
                with torch.no_grad():
                    predicted = int(client.model(test.x[row : row + 1]).argmax())
                counts[int(test.y[row]), predicted] += 1
        assert measured.counts == [
            [counts[true, predicted] for predicted in range(6)] for true in range(6)
        ]
        assert (measured.round, measured.took_part, measured.clients) == (3, 5, [0, 1, 2, 3, 4])


def test_a_measured_confusion_matrix_is_stored(folders: list[Path], tmp_path: Path) -> None:
    run = RunFolder(shutil.copytree(folders[0], tmp_path / "run"))
    first = confusion.measure(run, trust=OWN)
    shutil.rmtree(run.checkpoint)
    assert confusion.measure(run, trust=OWN) == first == confusion.read(run)


def test_a_random_part_of_many_clients_is_measured(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(shutil.copytree(folders[0], tmp_path / "run"))
    (run.path / "confusion.json").unlink(missing_ok=True)
    monkeypatch.setattr(confusion, "MAX_CLIENTS", 2)
    measured = confusion.measure(run, trust=OWN)
    assert (len(measured.clients), measured.took_part) == (2, 5)
    scores = run.records()[-1].accuracies
    for client, right, tested in zip(
        measured.clients, measured.right, measured.tested, strict=True
    ):
        assert scores[client] == right / tested


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("summary.json", "has not finished"),
        ("checkpoint", "has no checkpoint/"),
        ("client", "lacks the state of client 0"),
        ("flower.json", "on the clients' machines"),
        ("data.json", "holds another run: its data, settings"),
        ("npz", "does not exist"),
        ("cifar10", "is not on this machine (fedgh data fetch cifar10)"),
        ("private", "on the clients' machines"),
        ("confusion.json", "delete it"),
    ],
)
def test_the_error_gives_the_reason_why_confusion_cannot_be_measured(
    folders: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    reason: str,
) -> None:
    run = RunFolder(shutil.copytree(folders[0], tmp_path / "run"))
    (run.path / "confusion.json").unlink(missing_ok=True)
    text = run.config.read_text()
    monkeypatch.setenv("FEDGH_DATA", str(tmp_path))
    monkeypatch.setattr("fedgh.data.fetch.pooch.os_cache", lambda _: tmp_path)
    if damage == "summary.json":
        (run.path / damage).unlink()
    elif damage == "checkpoint":
        shutil.rmtree(run.checkpoint)
    elif damage == "client":
        next(run.checkpoint.glob("clients-*")).unlink()
    elif damage == "data.json":
        file = run.path / damage
        file.write_text(file.read_text().replace(run.identity().fingerprint, "0"))
    elif damage == "npz":
        run.config.write_text(text.replace("data.npz", "gone.npz"))
    elif damage == "cifar10":
        run.config.write_text(text.replace('name = "npz"', 'name = "cifar10"'))
    elif damage == "private":
        private = 'name = "private"\nclasses = ["a", "b"]\nshape = [5]'
        run.config.write_text(text.replace('name = "npz"', private))
    else:
        (run.path / damage).write_text("{}")
    with pytest.raises(FedghError) as caught:
        confusion.measure(run, trust=OWN)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
