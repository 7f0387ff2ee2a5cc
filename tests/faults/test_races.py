"""Two commands that work on one folder at the same instant never make one run of two.

Afterwards the folder holds, to the bit, the run that one of them would have made alone; the other
has been refused in a line, or has a folder of its own.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
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
"""Seconds within which a command that is not disturbed does most of its work."""

Alone = Callable[..., dict[str, Any]]
"""From settings to what is in the folder of a run that nobody disturbed."""

Half = Callable[[Path], None]
"""Makes a folder with the run of seed 1, stopped after its first round."""


def pairs(number: int) -> pytest.MarkDecorator:
    """So many pairs of commands, each a test of its own."""
    return pytest.mark.parametrize("chance", range(number), indirect=True)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Random:
    """What differs from pair to pair: who is how late, who is killed when."""
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
def alone(new_workdir: NewWorkdir) -> Alone:
    @cache
    def content(*settings: str) -> dict[str, Any]:
        return everything(loop.run(prepared(*settings), new_workdir() / "run").path)

    return content


@pytest.fixture(scope="module")
def half(new_workdir: NewWorkdir) -> Half:
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


def compare(*settings: str, methods: Sequence[str] = METHODS) -> tuple[str, ...]:
    what = ("--methods", ",".join(methods), "--seeds", "1", *_set(*settings))
    return ("compare", "demo", "-q", *what, "--out", "all")


def _set(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in (*SETTINGS, *settings) for word in ("--set", setting))


def trial(method: str, *settings: str) -> tuple[str, ...]:
    """The settings of a run within a comparison."""
    return (*settings, f"method.name={method}", ONE)


def everything(folder: Path) -> dict[str, Any]:
    """What is in a folder, also how it was to be computed."""
    return {**end(folder), "config.toml": (folder / "config.toml").read_text()}


def is_refusal(finish: Finish) -> bool:
    """Whether a command has ended with an error in words, in one line."""
    return finish.code in (1, 2) and bool(re.fullmatch(r"error: [^\n]+\n", finish.words))


def assert_whole(folder: Path, *runs: dict[str, Any]) -> None:
    """The folder holds exactly one of these runs, and all in it says that it is of the same."""
    found = RunFolder.open(folder)
    round, state = found.committed()
    found.client_files(round).check(state["trained"].tolist())
    found.means()
    assert everything(folder) in runs


def assert_finished(racers: Racers, folder: Path, *runs: dict[str, Any]) -> None:
    """The same, and a resume finds nothing left to do."""
    assert_whole(folder, *runs)
    assert racers.race(folder.parent, Start(resume(folder.name))) == [Finish(0, "")]
    assert_whole(folder, *runs)


@pairs(30)
def test_two_runs_into_one_folder(
    racers: Racers, workdir: Path, alone: Alone, chance: Random
) -> None:
    late = chance.choice([0.0, chance.uniform(0, 0.02)])
    seeds = chance.sample([ONE, OTHER], 2)
    finishes = racers.race(workdir, Start(run(seeds[0])), Start(run(seeds[1]), late))
    (winner,) = (seed for seed, finish in zip(seeds, finishes, strict=True) if finish.code == 0)
    assert [is_refusal(finish) for finish in finishes].count(True) == 1, finishes
    assert_finished(racers, workdir / "run", alone(winner))


@pairs(12)
def test_two_runs_that_choose_their_folders(
    racers: Racers, workdir: Path, alone: Alone, chance: Random
) -> None:
    seeds = [ONE, OTHER]
    finishes = racers.race(workdir, *(Start(run(seed, out=None)) for seed in seeds))
    assert finishes == [Finish(0, "")] * 2
    folders = sorted((workdir / "runs").iterdir())
    assert [folder.name for folder in folders] == ["demo", "demo-2"]
    contents = [everything(folder) for folder in folders]
    assert contents in ([alone(ONE), alone(OTHER)], [alone(OTHER), alone(ONE)])
    for folder, content in zip(folders, contents, strict=True):
        assert_finished(racers, folder, content)


@pairs(14)
def test_a_run_and_a_resume(racers: Racers, workdir: Path, alone: Alone, chance: Random) -> None:
    later = Start(resume(), chance.uniform(0, SPAN))
    started, resumed = racers.race(workdir, Start(run(ONE)), later)
    assert started == Finish(0, "")
    assert resumed == Finish(0, "") or is_refusal(resumed)
    assert_finished(racers, workdir / "run", alone(ONE))


@pairs(14)
def test_two_resumes(
    racers: Racers, workdir: Path, alone: Alone, half: Half, chance: Random
) -> None:
    half(workdir / "run")
    later = Start(resume(), chance.uniform(0, SPAN / 4))
    finishes = racers.race(workdir, Start(resume()), later)
    assert Finish(0, "") in finishes
    assert all(finish == Finish(0, "") or is_refusal(finish) for finish in finishes)
    assert_finished(racers, workdir / "run", alone(ONE))


@pairs(8)
def test_two_comparisons(racers: Racers, workdir: Path, alone: Alone, chance: Random) -> None:
    later = Start(compare(), chance.uniform(0, SPAN))
    finishes = racers.race(workdir, Start(compare()), later)
    assert Finish(0, "") in finishes
    assert all(finish == Finish(0, "") or is_refusal(finish) for finish in finishes)
    for method in METHODS:
        assert_finished(racers, workdir / "all" / f"{method}-seed1", alone(*trial(method)))


@pairs(8)
def test_two_comparisons_with_different_settings(
    racers: Racers, workdir: Path, alone: Alone, chance: Random
) -> None:
    other = "run.eval_every=2"
    later = Start(compare(other), chance.uniform(0, SPAN))
    finishes = racers.race(workdir, Start(compare()), later)
    assert Finish(0, "") in finishes
    assert all(finish == Finish(0, "") or is_refusal(finish) for finish in finishes)
    for method in METHODS:
        either = alone(*trial(method)), alone(*trial(method, other))
        assert_finished(racers, workdir / "all" / f"{method}-seed1", *either)


@pairs(8)
def test_a_comparison_that_is_killed_while_one_with_different_settings_goes_on(
    racers: Racers, workdir: Path, alone: Alone, chance: Random
) -> None:
    rounds, other = "federation.rounds=3", "run.eval_every=3"
    killed = Start(compare(rounds, other, methods=METHODS[::-1]), killed=chance.uniform(0, SPAN))
    _, whole = racers.race(workdir, killed, Start(compare(rounds)))
    assert whole == Finish(0, "") or is_refusal(whole)
    for method in METHODS:
        either = alone(*trial(method, rounds)), alone(*trial(method, rounds, other))
        folder = workdir / "all" / f"{method}-seed1"
        if (folder / "config.toml").exists():
            assert racers.race(folder.parent, Start(resume(folder.name))) == [Finish(0, "")]
            assert_whole(folder, *either)


@pairs(10)
def test_a_comparison_and_a_run_in_its_folder(
    racers: Racers, workdir: Path, alone: Alone, chance: Random
) -> None:
    folder = workdir / "all" / "fedgh-seed1"
    other = run(OTHER, out=str(folder))
    whole, single = racers.race(workdir, Start(compare()), Start(other, chance.uniform(0, 0.1)))
    winner = trial("fedgh") if is_refusal(single) else (OTHER,)
    assert single == Finish(0, "") or is_refusal(single)
    assert whole == Finish(0, "") or (is_refusal(whole) and single.code == 0)
    assert_finished(racers, folder, alone(*winner))
    if whole.code == 0:
        assert_finished(racers, workdir / "all" / "standalone-seed1", alone(*trial("standalone")))


@pairs(20)
def test_a_run_that_is_killed_while_another_starts(
    racers: Racers, workdir: Path, alone: Alone, chance: Random
) -> None:
    killed = chance.uniform(0, SPAN)
    late = chance.choice([0.0, killed])
    _, other = racers.race(workdir, Start(run(ONE), killed=killed), Start(run(OTHER), late))
    if is_refusal(other) and (workdir / "run" / "config.toml").exists():
        assert racers.race(workdir, Start(resume())) == [Finish(0, "")]
        winner = ONE
    else:
        if is_refusal(other):  # the first had the folder, and died before its run existed
            (other,) = racers.race(workdir, Start(run(OTHER)))
        assert other == Finish(0, "")
        winner = OTHER
    assert_finished(racers, workdir / "run", alone(winner))


@pairs(10)
def test_a_resume_that_is_killed_while_another_starts(
    racers: Racers, workdir: Path, alone: Alone, half: Half, chance: Random
) -> None:
    half(workdir / "run")
    killed = chance.uniform(0, SPAN)
    late = chance.choice([0.0, killed])
    _, other = racers.race(workdir, Start(resume(), killed=killed), Start(resume(), late))
    assert other == Finish(0, "") or is_refusal(other)
    assert racers.race(workdir, Start(resume())) == [Finish(0, "")]
    assert_finished(racers, workdir / "run", alone(ONE))


def test_processes_of_their_own(racers: Racers, workdir: Path, alone: Alone, half: Half) -> None:
    """Pairs as users start them, with the reports that they write at the end."""
    one, other = _processes(workdir, run(ONE, out="a"), run(OTHER, out="a"))
    assert sorted([one.code, other.code]) == [0, 1]
    assert is_refusal(one) or is_refusal(other)
    half(workdir / "b")
    resumes = _processes(workdir, resume("b"), resume("b"))
    assert Finish(0, "") in resumes
    assert all(finish == Finish(0, "") or is_refusal(finish) for finish in resumes)
    for folder, winner in (("a", ONE if one.code == 0 else OTHER), ("b", ONE)):
        for extra in ("report.html", "confusion.json"):
            (workdir / folder / extra).unlink()
        assert_finished(racers, workdir / folder, alone(winner))


def _processes(workdir: Path, *commands: tuple[str, ...]) -> list[Finish]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "fedgh", *words],
            cwd=workdir,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for words in commands
    ]
    said = [process.communicate()[0] for process in started]
    return [Finish(process.returncode, words) for process, words in zip(started, said, strict=True)]
