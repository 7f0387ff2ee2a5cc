"""The progress of a sweep: in a terminal one line for each run, and no warning twice."""

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedgh.core.types import Reply
from fedgh.errors import RunError
from fedgh.runs.folder import RunFolder
from fedgh.training import sweep_progress
from fedgh.training.progress import Live
from fedgh.training.sweep_progress import SweepProgress
from tests.support.records import a_round
from tests.support.tiny import quick

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


def console_of(terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=terminal, no_color=True)


def played(out: Path, *, terminal: bool) -> str:
    """Return what is printed about two runs at the same time."""
    experiment, console = quick("federation.rounds=2"), console_of(terminal)
    with (
        SweepProgress(console) as progress,
        progress.watch("[1/2] fedgh, seed 0") as one,
        progress.watch("[2/2] fd:a=[b], seed 0; about 0:00:06 remaining") as two,
    ):
        for callback, name in ((one, "one"), (two, "two")):
            callback.started(experiment, RunFolder(out / name), [])
            progress.bars.refresh()
            callback.warned(f"{out / name} was started with torch 1")
            for client, error in ((3, "out of memory"), (4, "no disk"), (5, "out of memory")):
                callback.replied(Reply(client, 1, error=error))
            callback.finished_round(a_round(1, 0.5, bytes_total=1000))
            progress.bars.refresh()
            callback.finished_round(a_round(2, 0.75, bytes_total=2048))
            progress.bars.refresh()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


LINES = [
    "digits: 5 clients, 2 networks, 2 rounds -> OUT",
    "a run was started with torch 1 (printed once for all runs)",
    "[1/2] fedgh, seed 0: round 1: client 3 failed: out of memory",
    "[1/2] fedgh, seed 0: round 1: client 4 failed: no disk",
    "[1/2] fedgh, seed 0: round 1: 1 more client failed for the same reasons",
    "[1/2] fedgh, seed 0: accuracy 75.0%, 2.0 KB sent, 0:00:00",
    "[2/2] fd:a=[b], seed 0: round 1: client 3 failed: out of memory",
    "[2/2] fd:a=[b], seed 0: round 1: client 4 failed: no disk",
    "[2/2] fd:a=[b], seed 0: round 1: 1 more client failed for the same reasons",
    "[2/2] fd:a=[b], seed 0: accuracy 75.0%, 2.0 KB sent, 0:00:00",
]


def test_without_a_terminal_a_run_has_a_line_at_its_start_and_its_end(tmp_path: Path) -> None:
    starts = ["[1/2] fedgh, seed 0", "[2/2] fd:a=[b], seed 0; about 0:00:06 remaining"]
    lines = played(tmp_path, terminal=False).replace(str(tmp_path), "OUT").splitlines()
    assert lines == [*starts, *LINES]


def test_rounds_are_lines_without_a_terminal_but_not_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_progress, "SECONDS_BETWEEN_LINES", 0.0)
    line = "[1/2] fedgh, seed 0: round 1 of 2, accuracy 50.0%"
    assert line in played(tmp_path, terminal=False).splitlines()


def test_in_a_terminal_each_run_has_one_line_that_its_result_replaces(tmp_path: Path) -> None:
    shown = CONTROL.sub("\n", played(tmp_path, terminal=True)).replace(str(tmp_path), "OUT")
    lines = [line.rstrip() for line in shown.splitlines()]
    assert [line for line in lines if line in LINES] == LINES
    bars = [line for line in lines if re.search(r" \d:\d\d:\d\d$", line) and line not in LINES]
    assert any(re.fullmatch(r"\[1/2] fedgh, seed 0 +0/2 +0:00:00", line) for line in bars)
    assert any(re.search(r"^\[1/2] fedgh, seed 0 .* finishing +75\.0% +0:00:00", b) for b in bars)
    assert any(re.fullmatch(r"\[1/2] fedgh, seed 0 +━+ +1/2 50.0% 0:00:00", line) for line in bars)
    assert {cell_len(line) for line in bars} == {80}
    assert "about 0:00:06 remaining" in lines


def test_a_search_shows_validation_accuracies(tmp_path: Path) -> None:
    console = console_of(terminal=False)
    with SweepProgress(console, search=True) as progress, progress.watch("fedgh, seed 0") as run:
        run.started(quick("federation.rounds=1"), RunFolder(tmp_path), [])
        validation = {"validation_accuracy": 0.5, "validation_accuracy_per_client": [0.5]}
        run.finished_round(a_round(1, 0.9, **validation))
    assert isinstance(console.file, io.StringIO)
    assert "fedgh, seed 0: validation accuracy 50.0%, 0 B sent" in console.file.getvalue()
    assert "90.0%" not in console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_without_a_result_is_named_at_once(terminal: bool) -> None:
    console = console_of(terminal)
    with (
        SweepProgress(console) as progress,
        pytest.raises(RunError),
        progress.watch("[1/2] fedgh, seed 0"),
    ):
        raise RunError("training diverged")
    assert isinstance(console.file, io.StringIO)
    text = CONTROL.sub("\n", console.file.getvalue())
    assert "[1/2] fedgh, seed 0: no result: training diverged" in text.splitlines()


def test_a_single_run_also_says_that_it_is_finishing(tmp_path: Path) -> None:
    console = console_of(terminal=True)
    assert isinstance(console.file, io.StringIO)
    with Live(console) as live:
        live.started(quick("federation.rounds=2"), RunFolder(tmp_path), [])
        for number in (1, 2):
            assert "finishing" not in console.file.getvalue()
            live.finished_round(a_round(number, 0.5))
        live._bar.refresh()
        assert "finishing" in console.file.getvalue()
