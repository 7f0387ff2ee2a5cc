"""Several runs of a sweep at the same time: the same bits, and no process is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgh.config import RunSection
from fedgh.core.records import Round
from fedgh.engines.device import card_of, use_card
from fedgh.errors import ConfigError
from fedgh.runs.folder import RunFolder
from fedgh.studies.parallel import share_of_machine
from fedgh.studies.sweep import plan_comparison, run_trials
from fedgh.training.callbacks import Callback, StopTraining
from fedgh.training.experiment import Experiment
from tests.support.commands import PATIENCE, ROOT, SET, session_members, start
from tests.support.states import states
from tests.support.tiny import QUICK, numbers

METHODS = ("standalone", "fedgh", "fedproto")
DIVERGES = "fedgh:server_lr=1e30"


class Recorder(Callback):
    """A callback that records its calls, and stops a run after its second round on demand."""

    def __init__(self, line: str, calls: list[tuple[str, object]], stop: bool) -> None:
        self.line, self.calls, self.stop = line, calls, stop

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        assert experiment.config.method_name in run.path.name
        self.calls.append((self.line, len(done)))

    def finished_round(self, record: Round) -> None:
        self.calls.append((self.line, record))
        if self.stop and record.round == 2:
            raise StopTraining


@pytest.mark.faults  # the processes take seconds to start
@pytest.mark.parametrize("count", [0, 2])  # 2: every run has worker processes of its own
def test_runs_at_the_same_time_give_the_same_bits(count: int, tmp_path: Path) -> None:
    settings = [*QUICK, "run.engine=workers", f"run.workers={count}"]
    trials = plan_comparison("demo", ",".join([*METHODS, DIVERGES]), [0], settings)
    calls: list[tuple[str, object]] = []

    @contextmanager
    def watch(line: str) -> Iterator[Callback]:
        yield Recorder(line.partition("; ")[0], calls, stop="standalone" in line)

    at_once = run_trials(trials, tmp_path / "at once", watch, jobs=2)
    assert at_once.missing["standalone, seed 0"] == "a callback has stopped the run"
    assert [trial.label for trial, _ in at_once.runs] == ["fedgh", "fedproto"]
    at_once = run_trials(trials, tmp_path / "at once", jobs=2)
    in_turn = run_trials(trials, tmp_path / "in turn")
    assert at_once.missing == in_turn.missing
    assert list(at_once.missing) == [f"{DIVERGES}, seed 0"]
    for (trial, one), (other, two) in zip(at_once.runs, in_turn.runs, strict=True):
        assert trial == other
        assert numbers(one) == numbers(two)
        assert states(one) == states(two)
        assert one.config.read_text() == two.config.read_text()
    (fedgh,) = (run for trial, run in in_turn.runs if trial.label == "fedgh")
    rounds = [each for line, each in calls if line == "[2/4] fedgh, seed 0"]
    assert rounds[0] == 0
    assert [r.accuracy for r in rounds[1:] if isinstance(r, Round)] == [
        record.accuracy for record in fedgh.records()
    ]


def test_a_run_gets_its_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgh.studies.parallel.available_cores", lambda: 8)

    def share(jobs: int, device: str = "cpu", **settings: Any) -> tuple[str, int, float]:
        section = share_of_machine(RunSection(**settings), jobs, device)
        return section.engine, section.workers, section.memory

    assert share(2) == ("workers", 4, 2.0)
    assert share(3) == ("workers", 2, 4 / 3)
    assert share(8) == ("serial", 1, 0.5)
    assert share(20) == ("serial", 1, 0.2)
    assert share(4, workers=3) == ("workers", 3, 1.0)
    assert share(4, engine="serial", memory=8.0) == ("serial", 2, 2.0)
    assert share(2, "cuda") == ("serial", 1, 2.0)
    assert share(2, "mps") == ("serial", 1, 2.0)


def test_gpus_are_assigned_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [card_of(place) for place in range(4)] == ["0", "1", "2", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8a")
    assert [card_of(place) for place in range(3)] == ["5", "GPU-8a", "5"]
    use_card("GPU-8a")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-8a"


def test_ray_already_runs_on_all_machines(tmp_path: Path) -> None:
    trials = plan_comparison("demo", "standalone,fedgh", [0], [*QUICK, "run.engine=ray"])
    with pytest.raises(ConfigError, match="leave out --jobs"):
        run_trials(trials, tmp_path / "out", jobs=2)
    assert not (tmp_path / "out").exists()


LONGER = ["federation.rounds=30", "local.epochs=4"]  # long enough to be interrupted
ARGUMENTS = ["compare", "demo", *SET, *(word for each in LONGER for word in ("--set", each))]
ARGUMENTS += ["--methods", ",".join(METHODS), "--seeds", "0", "--jobs", "2"]


def start_comparison(out: Path) -> subprocess.Popen[str]:
    """Start a comparison; return when two runs have finished a round."""
    process = start(*ARGUMENTS, "--out", str(out))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        begun = [path for path in out.glob("*/rounds.jsonl") if path.read_text().count("\n")]
        if len(begun) == 2:
            return process
        time.sleep(0.01)
    pytest.fail(f"no two runs: {process.communicate()}")


def wait_for_the_end(process: subprocess.Popen[str]) -> None:
    """Wait until no process that the comparison has started is left."""
    deadline = time.monotonic() + PATIENCE
    while session_members(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session_members(process) == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    trials = plan_comparison("demo", ",".join(METHODS), [0], [*QUICK, *LONGER])
    outcome = run_trials(trials, tmp_path_factory.mktemp("undisturbed"))
    return {trial.label: [numbers(run), states(run)] for trial, run in outcome.runs}


def assert_resumed(out: Path, undisturbed: dict[str, list[object]]) -> None:
    """Repeat the command, and check that its runs are those of an undisturbed comparison."""
    again = subprocess.run(
        [sys.executable, "-m", "fedgh", *ARGUMENTS, "-q", "--out", str(out)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert (again.returncode, again.stderr) == (0, "")
    for method, expected in undisturbed.items():
        run = RunFolder.open(out / f"{method}-seed0")
        assert [numbers(run), states(run)] == expected
    assert json.loads((out / "comparison.json").read_text())["missing"] == {}


@pytest.mark.faults
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_run_outlives_its_sweep_and_all_are_resumed(
    kind: signal.Signals, tmp_path: Path, undisturbed: dict[str, list[object]]
) -> None:
    process = start_comparison(tmp_path / "out")
    process.send_signal(kind)
    _, stderr = process.communicate(timeout=PATIENCE)
    if kind is signal.SIGINT:
        assert process.returncode == 130
        assert stderr.strip() == "stopped; the same command resumes here"
    wait_for_the_end(process)
    assert_resumed(tmp_path / "out", undisturbed)


@pytest.mark.faults
def test_a_run_whose_process_is_killed_is_reported_and_resumed(
    tmp_path: Path, undisturbed: dict[str, list[object]]
) -> None:
    process = start_comparison(tmp_path / "out")
    locks = {(tmp_path / "out" / f"{m}-seed0" / ".lock").resolve(): m for m in METHODS}
    killed = None
    for member in session_members(process):
        for file in Path(f"/proc/{member}/fd").iterdir():
            if killed is None and file.resolve() in locks:
                killed = locks[file.resolve()]
                os.kill(member, signal.SIGKILL)
    assert killed is not None
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stderr) == (0, "")
    reason = f"{killed}, seed 0: the process of this run ended unexpectedly (exit code -9"
    assert any(line.startswith(reason) for line in stdout.splitlines())
    wait_for_the_end(process)
    assert_resumed(tmp_path / "out", undisturbed)
