"""The format of records: versions, keys, impossible values, and reading what was written."""

import json
from pathlib import Path

import pytest

from fedgh import renames
from fedgh.core.metrics import METRICS
from fedgh.core.records import (
    FORMAT_VERSION,
    RECORDED,
    ClientInfo,
    Identity,
    PrivacySpending,
    RequestCounts,
    Round,
    Summary,
    checked,
)
from fedgh.errors import RunError
from fedgh.report.write import write_report
from fedgh.runs.checkpoint import ClientFiles
from fedgh.runs.folder import RunFolder
from fedgh.runs.history import History
from fedgh.runs.read import name_runs
from fedgh.runs.sealed import pack, unpack
from fedgh.trained.clients import TrainedFederation
from fedgh.training import experiment, loop
from fedgh.training.callbacks import Callback
from tests.support.runs import interrupted
from tests.support.states import states
from tests.support.tiny import quick

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return loop.run(quick(), tmp_path_factory.mktemp("records") / "run")


def label_run(path: Path) -> object:
    return name_runs([path])


@pytest.mark.parametrize("version", [None, 0, 4, True, "1"])
def test_an_unknown_format_version_is_refused(tmp_path: Path, version: object) -> None:
    run = loop.run(quick("federation.rounds=1"), tmp_path / "run")
    file = run.path / "data.json"
    identity = json.loads(file.read_text())
    if version is None:
        del identity["format_version"]
    else:
        identity["format_version"] = version
    file.write_text(json.dumps(identity))
    for use in (loop.resume, RunFolder.open, TrainedFederation.load, label_run):
        with pytest.raises(
            RunError, match=r"data\.json has format version .*; this fedgh reads 1 and 2 and 3"
        ):
            use(run.path)


def test_a_run_of_format_version_1_is_read_and_resumed_to_the_same_result(tmp_path: Path) -> None:
    rounds = ("federation.rounds=2", "run.engine=serial")
    expected = loop.run(quick(*rounds), tmp_path / "expected")
    interrupted(quick(*rounds), tmp_path / "old", after=1)
    old = RunFolder.open(tmp_path / "old")
    before = old.records()
    _write_as_version_1(old.path)
    assert not list(old.checkpoint.glob("*.states"))
    assert old.records() == before
    assert old.clients() == expected.clients()
    resumed = loop.resume(old.path)
    assert [r.scores for r in resumed.records()] == [r.scores for r in expected.records()]
    assert resumed.identity().format_version == FORMAT_VERSION
    assert resumed.summary().final == expected.summary().final
    assert states(resumed) == states(expected)
    assert not list(old.checkpoint.glob("client-*"))


def _write_as_version_1(path: Path) -> None:
    """Rename the keys of an unfinished run to those of format version 1."""
    for file, names in (("rounds.jsonl", renames.ROUND), ("clients.json", renames.CLIENT)):
        text = (path / file).read_text()
        for old, new in names.items():
            text = text.replace(f'"{new}":', f'"{old}":')
        (path / file).write_text(text)
    config = (path / "config.toml").read_text()
    config = config.replace("extractors =", "zoo =").replace("max_norm =", "largest_norm =")
    (path / "config.toml").write_text(config)
    identity = json.loads((path / "data.json").read_text())
    (path / "data.json").write_text(json.dumps({**identity, "format_version": 1}))
    server = path / "checkpoint" / "server.safetensors"
    metadata, state = unpack(server.read_bytes())
    for old, new in renames.SERVER_STATE.items():
        state[old] = state.pop(new)
    digest = History(path / "rounds.jsonl").digest()
    server.write_bytes(pack(state, **{**metadata, "history": digest}))
    files = ClientFiles(server.parent, metadata["round"], metadata["run"])
    for client in files.clients:
        name = f"client-{client:06}.round-{files.round(client):06}.safetensors"
        (server.parent / name).write_bytes(files.read(client) or b"")
    for segment in server.parent.glob("*.states"):
        segment.unlink()


def test_every_key_of_a_record_is_documented(run: RunFolder) -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    for key in run.records()[-1].model_dump():
        assert f"`{key.removesuffix('_per_client')}`" in page, key
    kinds = (Identity, Round, ClientInfo, Summary, PrivacySpending, RequestCounts)
    keys = {key for kind in kinds for key in kind.model_fields} - {"scores", "per_client", "final"}
    for key in keys:
        assert f"`{key}`" in page, key


def test_a_record_has_every_metric_and_the_spread_over_clients(run: RunFolder) -> None:
    last = run.records()[-1]
    assert last.scores.keys() == set(RECORDED)
    assert all(score is not None for score in last.scores.values())
    assert run.summary().final == last.scores
    accuracies = [score for score in last.accuracies if score is not None]
    assert last.scores["accuracy_worst"] == min(accuracies)


@pytest.mark.parametrize("name", METRICS)
def test_an_impossible_score_is_refused(run: RunFolder, name: str) -> None:
    record = {**run.records()[-1].model_dump(), f"{name}_per_client": [-0.5]}
    with pytest.raises(RunError, match=f"{name} has an impossible value"):
        checked(list[Round], [record], "rounds.jsonl")


def test_a_resume_with_another_version_of_torch_warns_once(tmp_path: Path) -> None:
    interrupted(quick(), tmp_path / "run", 1)
    file = tmp_path / "run" / "data.json"
    identity = json.loads(file.read_text())
    identity["versions"]["torch"] = "2.6.0"
    file.write_text(json.dumps(identity))
    warnings: list[str] = []

    class Listener(Callback):
        def warned(self, text: str) -> None:
            warnings.append(text)

    loop.resume(tmp_path / "run", [Listener()])
    (text,) = warnings
    assert "was started with torch 2.6.0, this is" in text
    assert RunFolder(tmp_path / "run").identity().versions["torch"] != "2.6.0", "warned once"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accuracy_per_client": ...}, "no accuracy, or no accuracy_per_client"),
        ({"accuracy": ...}, "no accuracy, or no accuracy_per_client"),
        ({"scores": {}, "per_client": {}}, "Extra inputs are not permitted"),
        ({"unheard_of": 1}, "unheard_of: Extra inputs are not permitted"),
        ({"\x1b]0;owned\x07": 1}, "not permitted"),
        ({"bytes_up": 10**400}, "bytes_up"),
        ({"participants": [-1]}, "participants.0"),
        ({"seconds": {}}, "seconds has no total"),
    ],
)
def test_an_invalid_record_is_refused(
    run: RunFolder, changes: dict[str, object], reason: str
) -> None:
    line = {**run.records()[-1].model_dump(), **changes}
    line = {key: value for key, value in line.items() if value is not ...}
    with pytest.raises(RunError, match=reason) as refused:
        checked(list[Round], [line], "rounds.jsonl")
    assert str(refused.value).isprintable()


def test_records_and_summary_are_unchanged_after_writing_and_reading(run: RunFolder) -> None:
    for record in run.records():
        assert Round.model_validate(json.loads(json.dumps(record.model_dump()))) == record
    summary = run.summary()
    assert Summary.model_validate(json.loads(json.dumps(summary.model_dump()))) == summary


def test_trained_models_and_reports_do_not_load_the_data_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loop.run(quick(), tmp_path / "run")
    monkeypatch.setattr(experiment, "load_source", None)
    assert len(TrainedFederation(run).checkpoint.took_part) == 5
    assert write_report(run).exists()
