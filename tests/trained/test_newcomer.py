"""A newcomer trains with the global header, and a copy of it without."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedgh import ClientSpec, Federation, cli
from fedgh.errors import ConfigError, DataError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.trained.newcomer import NewcomerResult, join, save
from tests.support.participants import net, points, three


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("join") / "run"
    return Federation(three(), lr=0.1, batch_size=16).run(4, out=out, progress=False).folder


def newcomer() -> ClientSpec:
    x, y = points(5, seed=7)
    return ClientSpec(net(5, seed=3), (x, ["abc"[label] for label in y]), name="late")


def test_both_copies_start_equal_and_differ_only_by_the_header(run: RunFolder) -> None:
    rounds: list[int] = []
    found = join(run, newcomer(), 3, lambda round, *_: rounds.append(round))
    assert rounds == [1, 2, 3]
    assert len(found.with_header) == len(found.without_header) == 4
    assert found.with_header[0] == found.without_header[0]
    assert found.with_header != found.without_header
    assert found.others == run.records()[-1].accuracy
    assert list(found.history["epochs"]) == [0, 1, 2, 3]
    again = join(str(run.path), newcomer(), 3)  # a folder may also be given by its path
    assert again.with_header == found.with_header


def test_the_newcomer_takes_over_the_header_of_the_run(run: RunFolder) -> None:
    """With a learning rate of almost zero only the header changes."""
    _, state = run.committed()
    text = run.config.read_text().replace("lr = 0.1", "lr = 1e-30", 1)
    copy = RunFolder(run.path.parent / "slow")
    shutil.copytree(run.path, copy.path)
    copy.config.write_text(text)
    client = join(copy, newcomer(), 1).client
    assert torch.allclose(client.model.header.weight, state["server.weight"])
    assert client.classes == ["a", "b", "c"]
    assert client.number == 3


def test_augmentation_of_inputs_that_are_not_images_is_rejected(run: RunFolder) -> None:
    copy = RunFolder(run.path.parent / "flipped")
    shutil.copytree(run.path, copy.path)
    text = run.config.read_text()
    assert "augment = []" in text
    copy.config.write_text(text.replace("augment = []", 'augment = ["flip"]'))
    with pytest.raises(ConfigError, match=r"local.augment is for images, .* shape \(5,\)"):
        join(copy, newcomer(), 1)


def test_epochs_until_the_others_are_reached() -> None:
    client = None  # it is not used
    found = NewcomerResult(client, 0.8, 5, [0.1, 0.7, 0.8, 0.6], [0.1, 0.2, 0.3, 0.79])  # type: ignore[arg-type]
    assert (found.epochs_with, found.epochs_without) == (10, None)


def test_the_trained_newcomer_predicts_and_is_exported(run: RunFolder, tmp_path: Path) -> None:
    found = join(run, newcomer(), 8)
    x, y = points(5, seed=8)
    right = np.mean([a == "abc"[b] for a, b in zip(found.client.predict(x), y, strict=True)])
    assert right > 0.6
    assert found.client.accuracy == found.with_header[-1]
    exported = found.client.export(tmp_path / "late.safetensors", "safetensors")
    assert exported.difference == 0


def test_unknown_classes_and_methods_without_header_are_rejected(
    run: RunFolder, tmp_path: Path
) -> None:
    x, y = points(5, classes=4)
    with pytest.raises(DataError, match="class 'd' is not one of a, b, c"):
        join(run, ClientSpec(nn.Linear(5, 8), (x, ["abcd"[label] for label in y])))
    alone = Federation(three(), "standalone").run(1, out=tmp_path / "run", progress=False)
    with pytest.raises(RunError, match="standalone has no global header"):
        join(alone.folder, newcomer())


def test_the_newcomer_command_writes_model_and_accuracies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = [ClientSpec(net(4, seed=k), points(4, seed=k)) for k in range(2)]
    Federation(alike, lr=0.1).run(2, out=tmp_path / "run", progress=False)
    x, y = points(6, seed=5)
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=y.numpy())
    monkeypatch.chdir(tmp_path)
    command = ["newcomer", "run", "--data", "mine.npz", "--network", "mlp", "--rounds", "2"]
    done = CliRunner().invoke(cli.app, [*command, "--out", "late"])
    assert done.exit_code == 0, done.output
    assert "The other clients have a mean accuracy of" in done.output
    assert "with the header" in done.output
    saved = json.loads((tmp_path / "late" / "newcomer.json").read_text())
    assert len(saved["with_header"]) == 3
    assert (tmp_path / "late" / "model.safetensors").exists()


def test_the_model_of_a_newcomer_of_fedgh_plus_is_one_function(tmp_path: Path) -> None:
    x = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = ["ab"[row % 2] for row in range(60)]
    clients = [ClientSpec(nn.Flatten(), (x[k::3], y[k::3])) for k in range(3)]
    settings = {"method.feature_dim": 8}
    federation = Federation(clients[:2], "fedgh_plus", settings=settings)
    folder = federation.run(3, out=tmp_path / "run", progress=False).folder
    found = join(folder, clients[2], 3)
    model, numbers = save(found, tmp_path / "late")
    assert len(json.loads(numbers.read_text())["with_header"]) == 4
    exported = torch.export.load(model).module()
    for count in (1, 2, 60):
        logits = found.client.logits(x[:count])
        torch.testing.assert_close(exported(x[:count]), logits, rtol=1e-4, atol=1e-5)


def test_a_newcomer_can_join_an_unfinished_run(run: RunFolder, tmp_path: Path) -> None:
    federation = Federation(three())
    out = tmp_path / "run"
    federation.run(9, out=out, callbacks=[lambda r: r.round == 1], progress=False)
    found = join(out, newcomer(), 1)
    assert len(found.with_header) == 2
    assert found.others == RunFolder.open(out).records()[0].accuracy
