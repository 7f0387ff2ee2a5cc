"""Two commands that work on one folder at the same time never mix their runs.

Afterwards the folder has, to the bit, the run that one of the commands makes alone. The other
command has printed one line of error, or has another folder.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest

from fedgh import config
from fedgh.core.records import Round
from fedgh.runs.folder import RunFolder
from fedgh.training import experiment, loop
from fedgh.training.callbacks import Callback, StopTraining
from tests.faults.cases import NewWorkdir
from tests.faults.end import end
from tests.faults.racers import Finish, Racers, Start

pytestmark = [
    pytest.mark.faults,
    pytest.mark.xdist_group("races"),
    pytest.mark.timeout(600),
]

SETTINGS = (
    "federation.clients=5",
    "federation.rounds=2",
    "model.extractors=tests.support.tiny:mlp,tests.support.tiny:noisy",
    "model.rep_dim=4",
    "local.epochs=1",
    "local.batch_size=256",
    "run.engine=serial",
)

ONE, OTHER = "federation.seed=1", "federation.seed=2"
METHODS = ("fedgh", "standalone")
SPAN = 0.6
"""Seconds in which an undisturbed command does most of its work."""

ContentAlone = Callable[..., dict[str, Any]]
"""Function of settings that returns the content of an undisturbed run folder."""

CopyHalfRun = Callable[[Path], None]
"""Function that copies the run of seed 1, stopped after its first round, to a folder."""


def pairs(number: int) -> pytest.MarkDecorator:
    """Return a mark that runs a test with this number of random seeds."""
    return pytest.mark.parametrize("rng", range(number), indirect=True)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Random:
    """The random numbers of a test: delays, and times of kills."""
    return Random(request.param)


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    with Racers() as started:
        yield started


@pytest.fixture
def workdir(new_workdir: NewWorkdir) -> Iterator[Path]:
    made = new_workdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def content_alone(new_workdir: NewWorkdir) -> ContentAlone:
    @cache
    def content(*settings: str) -> dict[str, Any]:
        return everything(loop.run(prepared(*settings), new_workdir() / "run").path)

    return content


@pytest.fixture(scope="module")
def copy_half_run(new_workdir: NewWorkdir) -> CopyHalfRun:
    class OneRound(Callback):
        def finished_round(self, record: Round) -> None:
            raise StopTraining

    made = new_workdir() / "run"
    loop.run(prepared(ONE), made, [OneRound()])

    def copy(folder: Path) -> None:
        shutil.copytree(made, folder)

    return copy


def prepared(*settings: str) -> experiment.Experiment:
    return experiment.prepare(config.load("demo", [*SETTINGS, *settings]))


def run(*settings: str, out: str | None = "run") -> tuple[str, ...]:
    return ("run", "demo", "-q", *_set(*settings), *(("--out", out) if out else ()))


def resume(folder: str = "run") -> tuple[str, ...]:
    return ("resume", "-q", folder)


def compare(*settings: str, methods: Sequence[str] = METHODS, seeds: str = "1") -> tuple[str, ...]:
    options = ("--methods", ",".join(methods), "--seeds", seeds, *_set(*settings))
    return ("compare", "demo", "-q", *options, "--out", "all")


def _set(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in (*SETTINGS, *settings) for word in ("--set", setting))


def trial(method: str, *settings: str) -> tuple[str, ...]:
    """Return the settings of a run of a comparison."""
    return (*settings, f"method.name={method}", ONE)


def everything(folder: Path) -> dict[str, Any]:
    """Return the content of a run folder, including its configuration."""
    return {**end(folder), "config.toml": (folder / "config.toml").read_text()}


def is_one_line_error(finish: Finish) -> bool:
    """Return true if a command ended with one line of error."""
    return finish.code in (1, 2) and bool(re.fullmatch(r"error: [^\n]+\n", finish.output))


def assert_consistent(folder: Path, *runs: dict[str, Any]) -> None:
    """Check that the folder has exactly one of these runs, and that its files belong together."""
    found = RunFolder.open(folder)
    round, state = found.committed()
    found.client_files(round).check(state["trained"].tolist())
    found.means()
    assert everything(folder) in runs


def assert_finished(racers: Racers, folder: Path, *runs: dict[str, Any]) -> None:
    """Check that the folder has one of these runs, and that a resume changes nothing."""
    assert_consistent(folder, *runs)
    assert racers.race(folder.parent, Start(resume(folder.name))) == [Finish(0, "")]
    assert_consistent(folder, *runs)


@pairs(30)
def test_of_two_runs_into_one_folder_one_is_refused(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    late = rng.choice([0.0, rng.uniform(0, 0.02)])
    seeds = rng.sample([ONE, OTHER], 2)
    finishes = racers.race(workdir, Start(run(seeds[0])), Start(run(seeds[1]), late))
    (winner,) = (seed for seed, finish in zip(seeds, finishes, strict=True) if finish.code == 0)
    assert [is_one_line_error(finish) for finish in finishes].count(True) == 1, finishes
    assert_finished(racers, workdir / "run", content_alone(winner))


@pairs(12)
def test_two_runs_without_out_get_different_folders(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    seeds = [ONE, OTHER]
    finishes = racers.race(workdir, *(Start(run(seed, out=None)) for seed in seeds))
    assert finishes == [Finish(0, "")] * 2
    folders = sorted((workdir / "runs").iterdir())
    assert [folder.name for folder in folders] == ["demo", "demo-2"]
    contents = [everything(folder) for folder in folders]
    assert contents in (
        [content_alone(ONE), content_alone(OTHER)],
        [content_alone(OTHER), content_alone(ONE)],
    )
    for folder, content in zip(folders, contents, strict=True):
        assert_finished(racers, folder, content)


@pairs(14)
def test_a_resume_during_a_run_does_not_change_it(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    later = Start(resume(), rng.uniform(0, SPAN))
    started, resumed = racers.race(workdir, Start(run(ONE)), later)
    assert started == Finish(0, "")
    assert resumed == Finish(0, "") or is_one_line_error(resumed)
    assert_finished(racers, workdir / "run", content_alone(ONE))


@pairs(14)
def test_two_resumes_of_one_run_give_one_result(
    racers: Racers,
    workdir: Path,
    content_alone: ContentAlone,
    copy_half_run: CopyHalfRun,
    rng: Random,
) -> None:
    copy_half_run(workdir / "run")
    later = Start(resume(), rng.uniform(0, SPAN / 4))
    finishes = racers.race(workdir, Start(resume()), later)
    assert Finish(0, "") in finishes
    assert all(finish == Finish(0, "") or is_one_line_error(finish) for finish in finishes)
    assert_finished(racers, workdir / "run", content_alone(ONE))


@pairs(8)
def test_two_equal_comparisons_give_one_result(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    later = Start(compare(), rng.uniform(0, SPAN))
    finishes = racers.race(workdir, Start(compare()), later)
    assert Finish(0, "") in finishes
    assert all(finish == Finish(0, "") or is_one_line_error(finish) for finish in finishes)
    for method in METHODS:
        assert_finished(racers, workdir / "all" / f"{method}-seed1", content_alone(*trial(method)))


@pairs(4)
def test_jobs_of_an_array_share_a_folder_and_are_collected(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    tasks = ["1", "2", "3", "2"]  # one seed is given to two jobs
    starts = [Start(compare(seeds=seed), rng.uniform(0, SPAN)) for seed in tasks]
    finishes = racers.race(workdir, *starts)
    assert all(finish == Finish(0, "") or is_one_line_error(finish) for finish in finishes)
    assert sum(finish.code != 0 for finish in finishes) <= 1
    again = Start((*compare(seeds="1,2,3"), "--no-run"))
    assert racers.race(workdir, again) == [Finish(0, "")]
    for seed in sorted({*tasks}):
        for method in METHODS:
            settings = (f"method.name={method}", f"federation.seed={seed}")
            folder = workdir / "all" / f"{method}-seed{seed}"
            assert_finished(racers, folder, content_alone(*settings))
    rows = json.loads((workdir / "all" / "comparison.json").read_text())["rows"]
    for row in rows:
        runs = [RunFolder(workdir / "all" / f"{row['label']}-seed{seed}") for seed in (1, 2, 3)]
        accuracies = [run.summary().accuracy or 0.0 for run in runs]
        assert row["accuracy"] == pytest.approx(fmean(accuracies))
    assert [(row["label"], row["seeds"]) for row in rows] == [(method, 3) for method in METHODS]


@pairs(8)
def test_two_comparisons_with_different_settings_never_mix(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    other = "run.eval_every=2"
    later = Start(compare(other), rng.uniform(0, SPAN))
    finishes = racers.race(workdir, Start(compare()), later)
    assert Finish(0, "") in finishes
    assert all(finish == Finish(0, "") or is_one_line_error(finish) for finish in finishes)
    for method in METHODS:
        either = content_alone(*trial(method)), content_alone(*trial(method, other))
        assert_finished(racers, workdir / "all" / f"{method}-seed1", *either)


@pairs(8)
def test_a_killed_comparison_does_not_mix_with_one_of_different_settings(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    rounds, other = "federation.rounds=3", "run.eval_every=3"
    killed = Start(compare(rounds, other, methods=METHODS[::-1]), killed=rng.uniform(0, SPAN))
    _, whole = racers.race(workdir, killed, Start(compare(rounds)))
    assert whole == Finish(0, "") or is_one_line_error(whole)
    for method in METHODS:
        either = content_alone(*trial(method, rounds)), content_alone(*trial(method, rounds, other))
        folder = workdir / "all" / f"{method}-seed1"
        if (folder / "config.toml").exists():
            assert racers.race(folder.parent, Start(resume(folder.name))) == [Finish(0, "")]
            assert_consistent(folder, *either)


@pairs(10)
def test_a_comparison_and_a_run_in_its_folder_never_mix(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    folder = workdir / "all" / "fedgh-seed1"
    other = run(OTHER, out=str(folder))
    whole, single = racers.race(workdir, Start(compare()), Start(other, rng.uniform(0, 0.1)))
    winner = trial("fedgh") if is_one_line_error(single) else (OTHER,)
    assert single == Finish(0, "") or is_one_line_error(single)
    assert whole == Finish(0, "") or (is_one_line_error(whole) and single.code == 0)
    assert_finished(racers, folder, content_alone(*winner))
    if whole.code == 0:
        assert_finished(
            racers, workdir / "all" / "standalone-seed1", content_alone(*trial("standalone"))
        )


@pairs(20)
def test_a_run_that_starts_while_another_is_killed_does_not_mix_with_it(
    racers: Racers, workdir: Path, content_alone: ContentAlone, rng: Random
) -> None:
    killed = rng.uniform(0, SPAN)
    late = rng.choice([0.0, killed])
    _, other = racers.race(workdir, Start(run(ONE), killed=killed), Start(run(OTHER), late))
    if is_one_line_error(other) and (workdir / "run" / "config.toml").exists():
        assert racers.race(workdir, Start(resume())) == [Finish(0, "")]
        winner = ONE
    else:
        # The first had locked the folder, and was killed before its run existed.
        if is_one_line_error(other):
            (other,) = racers.race(workdir, Start(run(OTHER)))
        assert other == Finish(0, "")
        winner = OTHER
    assert_finished(racers, workdir / "run", content_alone(winner))


@pairs(10)
def test_a_resume_that_starts_while_another_is_killed_gives_the_same_result(
    racers: Racers,
    workdir: Path,
    content_alone: ContentAlone,
    copy_half_run: CopyHalfRun,
    rng: Random,
) -> None:
    copy_half_run(workdir / "run")
    killed = rng.uniform(0, SPAN)
    late = rng.choice([0.0, killed])
    _, other = racers.race(workdir, Start(resume(), killed=killed), Start(resume(), late))
    assert other == Finish(0, "") or is_one_line_error(other)
    assert racers.race(workdir, Start(resume())) == [Finish(0, "")]
    assert_finished(racers, workdir / "run", content_alone(ONE))


def test_real_processes_with_reports_never_mix_runs(
    racers: Racers, workdir: Path, content_alone: ContentAlone, copy_half_run: CopyHalfRun
) -> None:
    """Pairs of processes as users start them, which write reports at the end."""
    one, other = _processes(workdir, run(ONE, out="a"), run(OTHER, out="a"))
    assert sorted([one.code, other.code]) == [0, 1]
    assert is_one_line_error(one) or is_one_line_error(other)
    copy_half_run(workdir / "b")
    resumes = _processes(workdir, resume("b"), resume("b"))
    assert Finish(0, "") in resumes
    assert all(finish == Finish(0, "") or is_one_line_error(finish) for finish in resumes)
    for folder, winner in (("a", ONE if one.code == 0 else OTHER), ("b", ONE)):
        for extra in ("report.html", "confusion.json"):
            (workdir / folder / extra).unlink()
        assert_finished(racers, workdir / folder, content_alone(winner))


def _processes(workdir: Path, *commands: tuple[str, ...]) -> list[Finish]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "fedgh", *arguments],
            cwd=workdir,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments in commands
    ]
    outputs = [process.communicate()[0] for process in started]
    return [
        Finish(process.returncode, output) for process, output in zip(started, outputs, strict=True)
    ]
