"""The grid search for learning rate and batch size of the study `pays`."""

import csv
from pathlib import Path

import pytest

from fedgh.runs.folder import RunFolder
from fedgh.studies.study import Study
from tools import tune_pays
from tools.tune_pays import RATES, SIZES, Point, chosen, table

SETTING = {"title": "", "experiment": "demo", "set": ["federation.clients=5"]}
STUDY = Study.model_validate(
    {
        "title": "",
        "source": "",
        "about": "",
        "methods": ["standalone"],
        "setting": [
            {**SETTING, "name": "here", "tuned": ["local.lr=1"]},
            {**SETTING, "name": "there", "tuned": ["local.lr=1"]},
            {**SETTING, "name": "as-it-is"},
        ],
    }
)


def grid(**scores: float | None) -> list[Point]:
    """Return all points of the grid with 50%, except those named by rate and size."""
    return [
        Point("here", lr, int(size), 1, scores.get(f"lr{lr:g}_{size:g}".replace(".", "_"), 0.5))
        for lr in RATES
        for size in SIZES
    ]


def test_the_point_with_the_best_validation_accuracy_is_chosen() -> None:
    best = chosen(grid(lr0_01_32=0.7, lr0_03_8=0.6, lr0_003_8=None))
    assert best is not None
    assert best.line == 'tuned = ["local.lr=0.01", "local.batch_size=32"]'
    assert best.edge == "batch size"
    tied = chosen(grid(lr0_03_8=0.7, lr0_001_32=0.7 + 1e-12))
    assert tied is not None
    assert (tied.lr, tied.batch_size, tied.edge) == (0.001, 32, "learning rate and batch size")
    assert chosen(grid()[:-1]) is None  # not all points were tried


def test_every_point_is_written_to_the_table() -> None:
    rows = list(csv.DictReader(table([grid(lr0_01_32=0.75, lr0_03_8=None)]).splitlines()))
    assert len(rows) == 8
    (best,) = (row for row in rows if row["chosen"] == "yes")
    assert (best["local.lr"], best["validation accuracy, %"]) == ("0.01", "75.0")
    assert sum(row["validation accuracy, %"] == "" for row in rows) == 1


def test_a_stopped_search_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune_pays, "study", lambda _: STUDY)
    monkeypatch.setattr(tune_pays, "GRID", ("local.lr=0.05,0.1", "local.batch_size=64"))
    monkeypatch.setattr(tune_pays, "RATES", [0.05, 0.1])
    monkeypatch.setattr(tune_pays, "SIZES", [64.0])
    arguments = ["--budget", "smoke", "--out", str(tmp_path), "--table", str(tmp_path / "t.csv")]
    tune_pays.main([*arguments, "--only", "here"])
    printed = capsys.readouterr().out
    assert 'here: tuned = ["local.lr=0' in printed
    assert "learning rate and batch size at the edge of the grid" in printed
    assert "there: not all points of the grid have been tried" in printed
    first = RunFolder(tmp_path / "smoke" / "here" / "local.lr=0.05 local.batch_size=64-seed100")
    before = first.path.joinpath("rounds.jsonl").stat().st_mtime_ns
    assert not first.checkpoint.exists()

    tune_pays.main(arguments)
    assert first.path.joinpath("rounds.jsonl").stat().st_mtime_ns == before
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [row["setting"] for row in rows] == ["here", "here", "there", "there"]
    shown = float(rows[0]["validation accuracy, %"])
    assert shown == pytest.approx(100 * (first.records()[-1].scores["validation_accuracy"] or 0))
    assert sum(row["chosen"] == "yes" for row in rows) == 2
    with pytest.raises(SystemExit):
        tune_pays.main([*arguments, "--only", "as-it-is"])
    assert "--only as-it-is: unknown setting; choose from here, there" in capsys.readouterr().err
