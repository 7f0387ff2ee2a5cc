"""An exported file returns the logits of the model, without fedgh."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from fedgh import __version__, config, extras
from fedgh.data.sources import Source
from fedgh.errors import FedghError, RunError
from fedgh.models import extractor
from fedgh.runs.folder import RunFolder
from fedgh.trained import export
from fedgh.trained.clients import TrainedClient, TrainedFederation
from fedgh.training.experiment import prepare
from tests.support.commands import inside
from tests.support.tiny import noisy
from tests.trained.parts import CLASSES, as_if_trained, branching, copied, images

ROOT = Path(__file__).parent.parent.parent


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def federation_of(path: Path, *networks: Any, source: Source | None = None) -> TrainedFederation:
    """Return a federation with a client for each network, given by name or as an object."""
    overrides = [f"federation.clients={len(networks)}", "data.partition=iid", "model.rep_dim=8"]
    source = source or images(20 * len(networks), size=32, channels=3)
    if all(isinstance(network, str) for network in networks):
        settings = config.load("demo", [*overrides, f"model.extractors={','.join(networks)}"])
        return as_if_trained(prepare(settings, source=source), path)
    settings = config.load("demo", overrides)
    return as_if_trained(prepare(settings, source=source, extractors=networks), path)


def expected(client: TrainedClient, x: Tensor) -> Tensor:
    """Return the model's logits, with the preprocessing of bytes written out."""
    prepared = x.double() / 127.5 - 1 if x.dtype == torch.uint8 else x
    with torch.no_grad():
        logits: Tensor = client.model(prepared.float())
    return logits


def run_onnx(path: Path, x: Tensor) -> tuple[Tensor, str]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"x": x.numpy()})
    return torch.from_numpy(logits), session.get_modelmeta().custom_metadata_map["fedgh"]


def run_torch(path: Path, x: Tensor) -> tuple[Tensor, str]:
    texts = {"fedgh.json": ""}
    program = torch.export.load(path, extra_files=texts)
    return program.module()(x), texts["fedgh.json"]


def test_a_safetensors_file_has_the_exact_weights(run: Path, tmp_path: Path) -> None:
    trained = TrainedFederation.load(run, data=True, trust=True)
    number = trained.checkpoint.took_part[0]
    done = trained.clients[number].export(tmp_path / "new" / "model.safetensors", "safetensors")
    assert (done.difference, done.own, done.samples) == (0.0, True, 6)
    weights = safetensors.torch.load_file(done.path)
    model = trained.clients[number].model.state_dict()
    assert weights.keys() == model.keys()
    assert all(weights[name].equal(tensor) for name, tensor in model.items())
    assert {name.split(".")[0] for name in weights} == {"extractor", "header"}
    with safe_open(done.path, "pt") as file:
        about = json.loads(file.metadata()["fedgh"])
    record = RunFolder(run).records()[-1]
    assert about == {
        "format_version": 1,
        "fedgh": __version__,
        "classes": list(CLASSES),
        "held": trained.clients[number].classes,
        "input": {"shape": [1, 8, 8], "dtype": "uint8"},
        "preprocessing": {
            "words": "as float32, input * scale + offset",
            "scale": 1 / 127.5,
            "offset": -1.0,
            "included": False,
        },
        "network": trained.clients[number].network,
        "adapted": None,
        "client": number,
        "run": json.loads((run / "data.json").read_text())["fingerprint"],
        "round": 2,
        "accuracy": record.accuracies[number],
    }


def test_safetensors_of_a_network_with_convolutions_agree_to_the_bit(tmp_path: Path) -> None:
    """Grey images have two memory layouts, and the last bits of a convolution depend on them."""
    source = images(90, size=32, channels=1)
    for client in federation_of(tmp_path / "run", "cnn1", "cnn5", source=source).clients:
        done = client.export(tmp_path / f"{client.number}.safetensors", "safetensors")
        assert (done.difference, done.own) == (0.0, True)


@pytest.mark.parametrize(
    "networks",
    [
        ["cnn5", noisy],
        pytest.param(
            ["cnn1", "cnn2", "cnn3", "cnn4", "resnet18", "mlp", "perceptron"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two", "federation_of"],
)
def test_a_torch_export_file_maps_raw_images_to_logits(networks: list[Any], tmp_path: Path) -> None:
    found = [extractor(name) if isinstance(name, str) else name for name in networks]
    for client in federation_of(tmp_path / "run", *found).clients:
        done = client.export(tmp_path / f"{client.number}.pt2", "torch-export")
        assert done.own
        assert done.difference <= 1e-5
        for count in (1, 2, 7):
            x = images(count, size=32, channels=3).x
            logits, text = run_torch(done.path, x)
            assert_close(logits, expected(client, x))
        about = json.loads(text)
        assert about["preprocessing"]["included"]
        assert about["classes"] == list(CLASSES)
        program = torch.export.load(done.path)
        assert not program.example_inputs[0][0].any(), "no sample of a client is in its file"
        content = done.path.read_bytes()
        assert str(ROOT).encode() not in content
        assert b"stack_trace" not in content


@pytest.mark.parametrize(
    "networks",
    [
        ["tests.support.tiny:noisy"],
        pytest.param(
            ["cnn1", "cnn2", "cnn3", "cnn4", "cnn5", "resnet18", "mlp", "perceptron"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["one", "federation_of"],
)
def test_an_onnx_file_maps_raw_images_to_logits_and_export_prints_nothing(
    networks: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    for client in federation_of(tmp_path / "run", *networks).clients:
        done = client.export(tmp_path / f"{client.number}.onnx", "onnx")
        assert capfd.readouterr() == ("", "")
        assert not recwarn.list
        assert done.difference <= 1e-5
        for count in (1, 2, 7):
            x = images(count, size=32, channels=3).x
            logits, text = run_onnx(done.path, x)
            assert_close(logits, expected(client, x))
        about = json.loads(text)
        assert about["network"] == networks[client.number]
        assert about["input"] == {"shape": [3, 32, 32], "dtype": "uint8"}
        assert str(ROOT).encode() not in done.path.read_bytes()


def test_exported_models_of_tables_take_floats(table_run: Path, tmp_path: Path) -> None:
    client = TrainedFederation.load(
        copied(table_run, tmp_path / "alone"), data=True, trust=True
    ).clients[1]
    done = client.export(tmp_path / "model.pt2", "torch-export")
    assert (done.own, done.samples) == (False, export.MAX_SAMPLES)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
    logits, text = run_torch(done.path, x)
    assert_close(logits, expected(client, x))
    assert json.loads(text)["preprocessing"] == {
        "words": "none: inputs as they are",
        "scale": 1.0,
        "offset": 0.0,
        "included": True,
    }


@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_a_file_with_other_logits_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    trained = TrainedFederation.load(run, trust=True)
    client = trained.clients[trained.checkpoint.took_part[0]]
    kind = export.FORMATS["safetensors"]

    def read(trained: TrainedClient, content: bytes) -> export.Compute:
        said = kind.read(trained, content)
        return lambda x: said(x) * (1 + wrong)

    monkeypatch.setitem(export.FORMATS, "safetensors", replace(kind, read=read, tolerance=5e-4))
    old = tmp_path / "model.safetensors"
    old.write_bytes(b"old")
    with pytest.raises(RunError, match=r"logits differ by .* more than 0\.0005; nothing"):
        client.export(old, "safetensors")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_network_that_cannot_be_exported_is_reported(tmp_path: Path) -> None:
    client = federation_of(tmp_path / "run", branching, source=images(20)).clients[0]
    with pytest.raises(RunError, match="branching' cannot be written as torch-export") as caught:
        client.export(tmp_path / "model.pt2", "torch-export")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.pt2").exists()
    assert client.export(tmp_path / "model.safetensors", "safetensors").difference == 0


def test_unknown_formats_and_missing_packages_are_reported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = TrainedFederation.load(run, trust=True)
    client = trained.clients[trained.checkpoint.took_part[0]]
    with pytest.raises(FedghError, match="no format 'onx'; did you mean 'onnx'"):
        client.export(tmp_path / "model", "onx")  # type: ignore[arg-type]
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(
        FedghError,
        match=r"ONNX needs more packages; in a checkout",
    ):
        client.export(tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


def test_the_export_command_writes_a_file(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = str(TrainedFederation.load(run, trust=True).checkpoint.took_part[0])
    path = copied(run, tmp_path / "alone")
    words = ["export", str(path), "--client", number, "--format", "safetensors", "--trust"]
    assert inside(monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "random inputs (its data are not here): logits differ by at most 0.0e+00" in said
    file = path / "export" / f"client-{number}.safetensors"
    assert str(file) in said
    assert file.exists()
    assert inside(monkeypatch, *words, "--out", str(tmp_path / "x")) == 0
    assert (tmp_path / "x").read_bytes() == file.read_bytes(), "equal models are equal bytes"
    words[3] = "7"
    assert inside(monkeypatch, *words) == 2
    assert capsys.readouterr().err == "error: there is no client 7; they are 0 to 4\n"


def test_results_replace_no_file_of_another_kind(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = str(TrainedFederation.load(run, trust=True).checkpoint.took_part[0])
    key, old = tmp_path / "key", tmp_path / "old.safetensors"
    for file in (key, old):
        file.write_text("secret")
    words = ["export", str(run), "--client", number, "--format", "safetensors", "--trust", "--out"]
    assert inside(monkeypatch, *words, str(key)) == 2
    assert "exists and its name does not end in .safetensors" in capsys.readouterr().err
    assert inside(monkeypatch, *words, str(old)) == 0
    assert old.read_bytes() != b"secret"
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.uint8))
    words = ["predict", str(run), "--client", number, str(tmp_path / "x.npy"), "--trust", "--csv"]
    assert inside(monkeypatch, *words, str(key)) == 2
    assert "exists and its name does not end in .csv" in capsys.readouterr().err
    assert key.read_text() == "secret"
