"""What the documents show is what runs."""

import re
import sys
from pathlib import Path

import pytest

from fedgh import config, experiment, training
from fedgh.sweep import plan_comparison, run_trials
from tests.tiny import QUICK

ROOT = Path(__file__).parent.parent


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)


def test_the_example_of_a_ninth_method_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = python_blocks(ROOT / "docs" / "add-a-method.md")
    (tmp_path / "median_header.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "median_header:MedianHeader"
    settings = config.load("demo", [*QUICK, f"method.name={name}", "method.momentum=0.5"])
    assert config.parse(settings.to_table()) == settings
    one = training.run(experiment.prepare(settings), tmp_path / "one")
    assert one.records()[-1]["train_loss"] < one.records()[0]["train_loss"]
    trials = plan_comparison("demo", f"fedgh,{name}:momentum=0.5", [0], QUICK)
    outcome = run_trials(trials, tmp_path / "two")
    assert outcome.runs[1][1].records()[-1]["accuracy"] == one.records()[-1]["accuracy"]


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net, script = python_blocks(ROOT / "README.md")
    (tmp_path / "mine.py").write_text(net)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})
    assert float(capsys.readouterr().out) > 0.8
