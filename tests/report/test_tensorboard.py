"""The event files hold what the records hold, each round once."""

from pathlib import Path
from typing import Any

import pytest

from fedgh import training
from fedgh.core.runs import Record, RunFolder
from fedgh.errors import ConfigError
from fedgh.report import extra
from tests.tiny import numbers, quick


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
        values = {name: record.get(name) for name in ("accuracy", "evaluation_accuracy")}
        values |= {name: record.get(name) for name in ("global_accuracy", "train_loss")}
        values["bytes_total"] = record["bytes_total"]
        values |= {f"seconds/{phase}": spent for phase, spent in record["seconds"].items()}
        for name, value in values.items():
            if value is not None:
                out.setdefault(name, []).append((record["round"], pytest.approx(value, rel=1e-6)))
    return out


def test_every_round_is_written(tmp_path: Path) -> None:
    settings = ["run.tensorboard=true", "run.global_accuracy=true", "run.eval_every=2"]
    run = training.run(quick(*settings), tmp_path / "run")
    found = scalars(run)
    assert found == expected(run)
    assert [step for step, _ in found["accuracy"]] == [2, 3]
    assert [step for step, _ in found["train_loss"]] == [1, 2, 3]


class Impatient(training.Unwatched):
    def finished_round(self, record: Record) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_goes_on_without_doubles(tmp_path: Path) -> None:
    experiment = quick("run.tensorboard=true", "run.checkpoint_every=3", "federation.rounds=5")
    with pytest.raises(KeyboardInterrupt):
        training.run(experiment, tmp_path / "run", Impatient())
    run = training.resume(tmp_path / "run")
    assert scalars(run) == expected(run)
    straight = training.run(quick("federation.rounds=5"), tmp_path / "straight")
    assert numbers(run) == numbers(straight)
    assert not (straight.path / "tensorboard").exists()


def test_without_the_package_there_is_no_folder_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedgh\[tensorboard\]'"):
        training.run(quick("run.tensorboard=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
