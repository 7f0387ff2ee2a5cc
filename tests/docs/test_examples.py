"""The examples of the documents do what their pages say, and not only run."""

from pathlib import Path

import pytest

from fedgh import config
from fedgh.studies.sweep import plan_comparison, run_trials
from fedgh.training import experiment, loop
from tests.docs.blocks import blocks
from tests.docs.reader import Reader
from tests.support.tiny import QUICK


def test_the_ninth_method_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (b for b in blocks("docs/add-a-method.md") if b.language == "python")
    reader = Reader(tmp_path, monkeypatch)
    reader.follow(code)
    name = "median_header:MedianHeader"
    settings = config.load("demo", [*QUICK, f"method.name={name}", "method.momentum=0.5"])
    assert config.parse(settings.to_table()) == settings
    one = loop.run(experiment.prepare(settings), tmp_path / "one")
    first, *_, last = (record.train_loss or 0 for record in one.records())
    assert last < first
    trials = plan_comparison("demo", f"fedgh,{name}:momentum=0.5", [0], QUICK)
    outcome = run_trials(trials, tmp_path / "two")
    assert outcome.runs[1][1].records()[-1].accuracy == one.records()[-1].accuracy
    reader.leave()
