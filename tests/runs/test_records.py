"""The format of a run folder has a version, and other versions are refused in words."""

import json
from pathlib import Path

import pytest

from fedgh.core.metrics import METRICS
from fedgh.core.records import RECORDED, Identity, Round, checked
from fedgh.errors import RunError
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.callbacks import Callback
from tests.support.runs import interrupted
from tests.support.tiny import quick

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return loop.run(quick(), tmp_path_factory.mktemp("records") / "run")


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_another_format_is_refused(tmp_path: Path, version: object) -> None:
    made = loop.run(quick("federation.rounds=1"), tmp_path / "run")
    file = made.path / "data.json"
    known = json.loads(file.read_text())
    known = {**known, "format_version": version} if version is not None else known
    if version is None:
        del known["format_version"]
    file.write_text(json.dumps(known))
    with pytest.raises(RunError, match=r"data\.json has format version .*; this fedgh reads 1"):
        loop.resume(made.path)


def test_every_key_of_a_record_is_documented(run: RunFolder) -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    for key in run.records()[-1].model_dump():
        assert f"`{key.removesuffix('_per_client')}`" in page, key
    for key in Identity.model_fields:
        assert f"`{key}`" in page, key


def test_a_record_has_every_metric_and_the_spread_over_clients(run: RunFolder) -> None:
    last = run.records()[-1]
    assert last.scores.keys() == set(RECORDED)
    assert all(score is not None for score in last.scores.values())
    assert run.summary().final == last.scores
    known = [score for score in last.accuracies if score is not None]
    assert last.scores["accuracy_worst"] == min(known)


@pytest.mark.parametrize("name", METRICS)
def test_an_impossible_score_is_refused(run: RunFolder, name: str) -> None:
    record = {**run.records()[-1].model_dump(), f"{name}_per_client": [-0.5]}
    with pytest.raises(RunError, match=f"{name} has an impossible value"):
        checked(list[Round], [record], "rounds.jsonl")


def test_a_resume_with_another_torch_says_so(tmp_path: Path) -> None:
    interrupted(quick(), tmp_path / "run", 1)
    file = tmp_path / "run" / "data.json"
    known = json.loads(file.read_text())
    known["versions"]["torch"] = "2.6.0"
    file.write_text(json.dumps(known))
    heard: list[str] = []

    class Listener(Callback):
        def warned(self, text: str) -> None:
            heard.append(text)

    loop.resume(tmp_path / "run", [Listener()])
    (text,) = heard
    assert "was started with torch 2.6.0, here is" in text
    assert RunFolder(tmp_path / "run").identity().versions["torch"] != "2.6.0", "said once"
