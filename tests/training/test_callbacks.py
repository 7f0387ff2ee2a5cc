"""Callbacks receive all events in order, can stop a run, and are always closed."""

import logging
from pathlib import Path

import pytest

from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.callbacks import Callback, StopTraining
from fedgh.training.experiment import Experiment
from tests.support.commands import SET, inside
from tests.support.tiny import numbers, quick

EVENTS: list[str] = []
"""Events that the callbacks below received."""


class Listener(Callback):
    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        EVENTS.append(f"started after {len(done)}")

    def replied(self, reply: Reply) -> None:
        EVENTS.append("replied")

    def finished_round(self, record: Round) -> None:
        EVENTS.append(f"finished {record.round}")

    def close(self) -> None:
        EVENTS.append("closed")


def stop_after_two(record: Round) -> bool:
    EVENTS.append(f"asked {record.round}")
    return bool(record.round == 2)


@pytest.fixture(autouse=True)
def _clear_events() -> None:
    EVENTS.clear()


def test_hooks_are_called_for_every_event_in_order(tmp_path: Path) -> None:
    loop.run(quick("federation.rounds=2"), tmp_path / "run", [Listener()])
    clients = ["replied"] * 5
    assert [event for event in EVENTS if event != "replied"] == [
        *("started after 0", "finished 1", "finished 2", "closed")
    ]
    assert EVENTS[1:6] == clients


def test_a_callback_is_closed_after_an_error(tmp_path: Path) -> None:
    class Failing(Callback):
        def finished_round(self, record: Round) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.run(quick(), tmp_path / "run", [Listener(), Failing()])
    assert EVENTS[-1] == "closed"


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    name = f"{__name__}:stop_after_two"
    experiment = quick(f"run.callbacks={name}", "run.checkpoint_every=3")
    run = loop.run(experiment, tmp_path / "run")
    assert not run.finished
    assert [record.round for record in run.records()] == [1, 2]
    resumed = loop.resume(tmp_path / "run")  # the function is called with round 2 again
    assert not resumed.finished
    assert EVENTS == ["asked 1", "asked 2", "asked 2"]
    resumed = loop.resume(tmp_path / "run", overrides=["run.callbacks=[]"])
    straight = loop.run(quick(), tmp_path / "straight")
    assert numbers(resumed) == numbers(straight)


def test_a_run_stopped_in_its_last_round_is_finished(tmp_path: Path) -> None:
    class Last(Callback):
        def finished_round(self, record: Round) -> None:
            if record.round == 3:
                raise StopTraining

    run = loop.run(quick(), tmp_path / "run", [Last(), Listener()])
    assert run.finished
    assert "finished 3" in EVENTS, "the other callbacks are called, too"


def test_the_run_command_prints_that_a_callback_stopped_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", *SET, "--set", f"run.callbacks={__name__}:stop_after_two"]
    assert inside(monkeypatch, *command, "--out", str(tmp_path / "run")) == 0
    out = capsys.readouterr().out
    assert f"a callback has stopped the run; resume with: fedgh resume {tmp_path / 'run'}" in out


def test_an_object_that_is_not_a_callback_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.callbacks: expected a callback or a function"):
        loop.run(quick(f"run.callbacks={__name__}:EVENTS"), tmp_path / "run")


def test_the_log_contains_rounds_and_failures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fedgh")
    settings = ["federation.rounds=1", "model.extractors=mlp,tests.support.tiny:failing"]
    run = loop.run(quick(*settings), tmp_path / "run")
    (record,) = run.records()
    lines = [log.getMessage() for log in caplog.records]
    assert lines[0] == f"fedgh: 5 clients, rounds 1 to 1, {tmp_path / 'run'}"
    assert sum("failed" in line for line in lines) == len(record.failed) > 0
    assert lines[-1].startswith("round 1 is done: accuracy ")


def broken(record: Round) -> None:
    raise ZeroDivisionError("by zero")


def test_an_error_names_the_failed_callback_and_the_run_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", *SET, "--set", f"run.callbacks={__name__}:broken"]
    assert inside(monkeypatch, *command, "--out", str(tmp_path / "run")) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the callback broken failed: ZeroDivisionError: by zero")
    assert "Traceback" not in err
    resumed = loop.resume(tmp_path / "run", overrides=["run.callbacks=[]"])
    assert numbers(resumed) == numbers(loop.run(quick(), tmp_path / "straight"))


class Demanding(Callback):
    def __init__(self, needed: int) -> None: ...


class Unclosable(Callback):
    def close(self) -> None:
        raise OSError("no room")


def test_errors_of_creating_and_closing_a_callback_name_it(tmp_path: Path) -> None:
    name = f"{__name__}:Demanding"
    with pytest.raises(ConfigError, match=r"run\.callbacks: Demanding\(\) failed.*argument"):
        loop.run(quick(f"run.callbacks={name}"), tmp_path / "run")
    with pytest.raises(RunError, match="the callback Unclosable failed: OSError: no room"):
        loop.run(quick(), tmp_path / "run", [Unclosable()])
    assert RunFolder(tmp_path / "run").finished


def test_a_function_can_be_a_callback(tmp_path: Path) -> None:
    run = loop.run(quick(), tmp_path / "run", [stop_after_two])
    assert len(run.records()) == 2


def test_resuming_a_run_without_summary_writes_it(tmp_path: Path) -> None:
    """The process was killed after the last commit, so a callback cannot stop the run any more."""
    settings = quick("federation.rounds=2")
    run = loop.run(settings, tmp_path / "run")
    (run.path / "summary.json").unlink()
    assert loop.resume(run.path, [stop_after_two]).finished
