"""Trackers contain the values of the records, each round once."""

from pathlib import Path
from typing import Any

import pytest

from fedgh import extras
from fedgh.core.records import RECORDED, Round
from fedgh.errors import ConfigError
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.callbacks import Callback
from fedgh.training.trackers import scalars as scalars_of
from tests.support.tiny import numbers, quick


def scalars(run: RunFolder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def expected(run: RunFolder) -> dict[str, list[tuple[int, Any]]]:
    out: dict[str, list[tuple[int, Any]]] = {}
    for record in run.records():
        line = record.model_dump()
        values = {name: line.get(name) for name in (*RECORDED, "train_loss", "bytes_total")}
        values |= {f"seconds/{phase}": spent for phase, spent in record.seconds.items()}
        for name, value in values.items():
            if value is not None:
                out.setdefault(name, []).append((record.round, pytest.approx(value, rel=1e-6)))
    return out


def test_tensorboard_has_the_metrics_of_every_round(tmp_path: Path) -> None:
    settings = ["run.callbacks=tensorboard", "run.global_accuracy=every", "run.eval_every=2"]
    run = loop.run(quick(*settings), tmp_path / "run")
    found = scalars(run)
    assert found == expected(run)
    assert [step for step, _ in found["accuracy"]] == [2, 3]
    assert [step for step, _ in found["train_loss"]] == [1, 2, 3]


class InterruptsRoundTwo(Callback):
    def finished_round(self, record: Round) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def test_tensorboard_has_no_round_twice_after_a_resume(tmp_path: Path) -> None:
    experiment = quick("run.callbacks=tensorboard", "run.checkpoint_every=3", "federation.rounds=5")
    with pytest.raises(KeyboardInterrupt):
        loop.run(experiment, tmp_path / "run", [InterruptsRoundTwo()])
    run = loop.resume(tmp_path / "run")
    assert scalars(run) == expected(run)
    straight = loop.run(quick("federation.rounds=5"), tmp_path / "straight")
    assert numbers(run) == numbers(straight)
    assert not (straight.path / "tensorboard").exists()


def test_a_missing_package_is_reported_before_the_run_folder_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install '.\[tensorboard\]'"):
        loop.run(quick("run.callbacks=tensorboard"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_wandb_has_the_metrics_of_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged: list[tuple[int, dict[str, float]]] = []
    log = wandb.Run.log

    def recorded(self: Any, data: dict[str, float], step: int) -> None:
        logged.append((step, data))
        log(self, data, step=step)

    monkeypatch.setattr(wandb.Run, "log", recorded)
    run = loop.run(quick("run.callbacks=wandb"), tmp_path / "run")
    assert logged == [(record.round, scalars_of(record)) for record in run.records()]
    (written,) = (run.path / "wandb").glob("offline-run-*/*.wandb")
    assert run.run_id in written.name


def test_mlflow_continues_its_run_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    experiment = quick("run.callbacks=mlflow", "federation.rounds=4")
    with pytest.raises(KeyboardInterrupt):
        loop.run(experiment, tmp_path / "run", [InterruptsRoundTwo()])
    run = loop.resume(tmp_path / "run")
    client = mlflow.MlflowClient()
    group = client.get_experiment_by_name("fedgh")
    (found,) = client.search_runs([group.experiment_id])
    assert found.data.params["federation.rounds"] == "4"
    for name in ("accuracy", "bytes_total"):
        history = client.get_metric_history(found.info.run_id, name)
        expected_values = [(record.round, getattr(record, name)) for record in run.records()]
        assert [(metric.step, metric.value) for metric in history] == expected_values


def test_an_unknown_tracker_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"run\.callbacks: no callback 'wndb'; did you mean 'wandb'"
    ):
        loop.run(quick("run.callbacks=wndb"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
