"""Predictions for images and arrays in files; the table of a run's clients."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from fedgh import config
from fedgh.errors import DataError
from fedgh.report.clients import client_sheet
from fedgh.runs.read import name_runs
from fedgh.trained.clients import TrainedClient, TrainedFederation
from fedgh.trained.predict import predict
from fedgh.training.experiment import prepare
from tests.support.commands import inside
from tests.trained.parts import as_if_trained, copied, images


@pytest.fixture
def client(run: Path) -> TrainedClient:
    trained = TrainedFederation.load(run, trust=True)
    return trained.clients[trained.checkpoint.took_part[0]]


def write_images(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(count)]
    for path, pixels in zip(paths, images(count).x, strict=True):
        Image.fromarray(pixels[0].numpy()).save(path)
    return paths


def test_images_folders_and_arrays_give_the_same_predictions(
    client: TrainedClient, tmp_path: Path
) -> None:
    x = images(6).x
    paths = write_images(tmp_path / "photos", 6)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    np.save(tmp_path / "x.npy", x.numpy())
    np.savez(tmp_path / "x.npz", x=x.permute(0, 2, 3, 1).numpy())  # channels last
    shares = client.logits(x).softmax(1)
    expected = [
        [client.class_names[order[0]], row[order[0]], client.class_names[order[1]], row[order[1]]]
        for row in shares.tolist()
        for order in [sorted(range(3), key=lambda label: -row[label])]
    ]
    for given in (paths, [tmp_path / "photos"], [tmp_path / "x.npy"], [tmp_path / "x.npz"]):
        table = predict(client, given)
        assert [row[2::2] for row in table.rows] == [row[0::2] for row in expected]
        found = torch.tensor([row[3::2] for row in table.rows])
        torch.testing.assert_close(found, torch.tensor([row[1::2] for row in expected]))
    both = predict(client, [paths[1], tmp_path / "x.npy"])
    assert [row[0] for row in both.rows] == [str(paths[1]), *6 * [str(tmp_path / "x.npy")]]
    assert [row[1] for row in both.rows] == [None, *range(6)]


def test_images_are_scaled_and_converted_to_the_clients_shape(
    client: TrainedClient, tmp_path: Path
) -> None:
    small = images(3).x
    large = interpolate(small, scale_factor=4, mode="nearest")
    for number, pixels in enumerate(large):
        colour = Image.fromarray(pixels[0].numpy()).convert("RGB")
        colour.resize((32, 24)).save(tmp_path / f"{number}.bmp")
    table = predict(client, [tmp_path])
    assert [row[2] for row in table.rows] == client.predict(small)


def test_colour_images_keep_their_channels(tmp_path: Path) -> None:
    source = images(20, channels=3)
    settings = config.load(
        "demo",
        ["federation.clients=1", "data.partition=iid", "model.extractors=mlp", "model.rep_dim=4"],
    )
    client = as_if_trained(prepare(settings, source=source), tmp_path / "run").clients[0]
    Image.fromarray(source.x[0].permute(1, 2, 0).numpy()).save(tmp_path / "0.png")
    (row,) = predict(client, [tmp_path / "0.png"]).rows
    assert row[3] == pytest.approx(float(client.probabilities(source.x[:1]).max()))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\nnothing more", "a.png is not a readable image"),
        ("a.txt", b"hello", "a.txt is not a readable image"),
        ("a.npy", b"\x93NUMPY hello", "a.npy is not a readable .npy file"),
        ("a.npz", b"PK hello", "a.npz is not a readable .npz file"),
        ("gone.png", None, "gone.png does not exist"),
    ],
)
def test_an_error_names_the_damaged_file(
    client: TrainedClient, tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        predict(client, [tmp_path / name])
    assert "\n" not in str(caught.value)
    assert str(caught.value).count(str(tmp_path / name)) <= 2


def test_files_with_unsuitable_inputs_are_rejected(
    client: TrainedClient, table_run: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 9, 9), np.uint8))
    with pytest.raises(
        DataError, match=r"a.npy: expected uint8 \[n, 1, 8, 8\], got other inputs: bytes of"
    ):
        predict(client, [tmp_path / "a.npy"])
    np.savez(tmp_path / "b.npz", y=np.zeros(3))
    with pytest.raises(DataError, match=r"b.npz .*must contain x; it has y.npy"):
        predict(client, [tmp_path / "b.npz"])
    np.save(tmp_path / "c.npy", np.array([{}]))  # a pickle
    with pytest.raises(DataError, match=r"c.npy is not a readable .npy file: Object arrays"):
        predict(client, [tmp_path / "c.npy"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no images"):
        predict(client, [tmp_path / "empty"])
    (image,) = write_images(tmp_path / "photos", 1)
    with pytest.raises(DataError, match=r"the client takes float32 \[n, 5\], not images"):
        predict(TrainedFederation.load(table_run, trust=True).clients[0], [image])


def test_the_predict_command_prints_and_writes_all_rows(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = copied(run, tmp_path / "alone")
    np.save(tmp_path / "x.npy", images(250).x.numpy())
    number = TrainedFederation.load(run, trust=True).checkpoint.took_part[0]
    command = ["predict", str(path), "--client", str(number), "--trust", str(tmp_path / "x.npy")]
    assert inside(monkeypatch, *command, "--csv", str(tmp_path / "said.csv")) == 0
    output = capsys.readouterr().out
    assert "50 more rows are not shown; --csv FILE writes all" in output
    with (tmp_path / "said.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(250))
    expected = TrainedFederation.load(run, trust=True).clients[number].predict(images(250).x)
    assert [row["class"] for row in rows] == expected
    assert inside(monkeypatch, *command[:-1], str(tmp_path / "nothing")) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'nothing'} does not exist\n"


def test_the_clients_command_reads_only_text_files_of_a_run(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = copied(run, tmp_path / "words")
    (path / "checkpoint").rename(tmp_path / "away")
    (path / "flower.json").write_text("{}")
    known = json.loads((path / "clients.json").read_text())
    known[0]["extractor"] = "mlp"
    known[1] |= {"extractor": "evil:net\x1b[31m", "name": "north"}
    known[2] |= {"extractor": "private", "classes": {}}
    known[3]["extractor"] = "cnn1"  # which does not take such images
    (path / "clients.json").write_text(json.dumps(known))
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    records[1]["failed"] = [{"client": records[1]["participants"][0], "reason": "tired"}]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    rows = client_sheet(name_runs([path])[0]).rows
    weights = (64 * 64 + 64) + (64 * 16 + 16) + (16 * 3 + 3)
    assert [row[2] for row in rows] == [weights, None, None, None, None]
    assert [row[4] for row in rows] == [60, 60, None, 60, 60]
    last = dict.fromkeys(records[0]["participants"], 1)
    last |= dict.fromkeys(records[1]["participants"][1:], 2)
    assert [row[5] for row in rows] == [last.get(client) for client in range(5)]
    scores = [f"{100 * score:.1f}%" for score in records[1]["accuracy_per_client"]]
    assert [row[6] for row in rows] == scores
    assert inside(monkeypatch, "clients", str(path)) == 0
    output = capsys.readouterr().out
    assert "1 north" in output
    assert "\x1b" not in output
    assert "evil" not in sys.modules
