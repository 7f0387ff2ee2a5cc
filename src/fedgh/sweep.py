"""Many runs of one experiment: planned, run one by one, resumed where they were stopped.

The runs of one seed share everything but what is compared: partition, initial weights and the
order of the batches are functions of the seed (`core/rng.py`).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fedgh import config as configs
from fedgh.config import Config
from fedgh.core.runs import RunFolder
from fedgh.data.sources import Source
from fedgh.errors import ConfigError, RunError
from fedgh.experiment import Experiment, load_source, prepare
from fedgh.methods import METHODS
from fedgh.training import Unwatched, Watcher, resume, run

_IRRELEVANT = {"engine", "workers", "checkpoint_every"}  # to what a run records

Watch = Callable[[str], AbstractContextManager[Watcher]]
"""Given a line about a run, someone to watch it."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    label: str
    seed: int
    config: Config

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return f"{self.label.replace('/', '_')}-seed{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """A sweep that has been run: its runs, and why some labels could not be."""

    runs: list[tuple[Trial, RunFolder]]
    impossible: dict[str, str]


def plan_comparison(
    experiment: str | Path,
    methods: str,
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
) -> list[Trial]:
    """One trial per method and seed. `methods` is `all`, or names with optional settings.

    A setting follows its method after a colon: `fedgh,fedgh:server_lr=0,standalone`.
    """
    labels = list(METHODS) if methods == "all" else _words(methods)
    plans = []
    for label in labels:
        # A colon also stands in names such as package.module:Class.
        name, *settings = re.split(r":(?=\w+=)", label)
        plans.append((label, [f"method.name={name}", *(f"method.{s}" for s in settings)]))
    return _plan(experiment, plans, seeds, overrides, data_dir)


def plan_search(
    experiment: str | Path,
    grid: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
) -> list[Trial]:
    """One trial per point of the grid and seed; `grid` has lines `section.key=value,value`."""
    axes = []
    for text in grid:
        key, _, values = text.partition("=")
        if not values:
            raise ConfigError(f"--grid {text}: expected section.key=value,value, e.g. local.lr=1,2")
        axes.append([f"{key}={value}" for value in _words(values)])
    plans = [(" ".join(point), list(point)) for point in product(*axes)]
    return _plan(experiment, plans, seeds, overrides, data_dir)


def run_trials(
    trials: Iterable[Trial], out: Path, watch: Watch | None = None, skip_impossible: bool = False
) -> Outcome:
    """Run what is not there yet, resume what was stopped, skip what is done.

    With `skip_impossible` a trial that its method or partition refuses is noted, not fatal.
    """
    trials = list(trials)
    runs: list[tuple[Trial, RunFolder]] = []
    impossible: dict[str, str] = {}
    data: tuple[object, Source] | None = None
    for number, trial in enumerate(trials, 1):
        path = out / trial.folder
        done = _finished(path, trial)
        if done is not None:
            runs.append((trial, done))
            continue
        if data is None or data[0] != trial.config.data:
            data = (trial.config.data, load_source(trial.config.data))
        source = data[1]
        try:
            prepared = prepare(trial.config, source=source)
        except ConfigError as error:
            if not skip_impossible:
                raise
            impossible[trial.label] = str(error)
            continue
        line = f"[{number}/{len(trials)}] {trial.label}, seed {trial.seed}"
        with watch(line) if watch else nullcontext(Unwatched()) as watcher:
            runs.append((trial, _run_or_resume(prepared, path, watcher)))
    return Outcome(runs, impossible)


def _run_or_resume(prepared: Experiment, path: Path, watcher: Watcher) -> RunFolder:
    if RunFolder(path).config.exists():
        return resume(path, watcher, prepare=lambda _: prepared)
    return run(prepared, path, watcher)


def _finished(path: Path, trial: Trial) -> RunFolder | None:
    """The run at `path` when it is complete; an error when it is another run altogether."""
    folder = RunFolder(path)
    if not folder.config.exists():
        return None
    there, wanted = configs.load(folder.config).to_table(), trial.config.to_table()
    differences = [
        f"{section}.{key} is {there[section].get(key)} there, {wanted[section].get(key)} asked for"
        for section in wanted
        for key in sorted((there[section].keys() | wanted[section].keys()) - _IRRELEVANT)
        if there[section].get(key) != wanted[section].get(key)
    ]
    if differences:
        raise RunError(f"{path} is another run: {'; '.join(differences)}. Choose another --out")
    return folder if folder.summary() is not None else None


def _plan(
    experiment: str | Path,
    plans: list[tuple[str, list[str]]],
    seeds: Sequence[int],
    overrides: Sequence[str],
    data_dir: Path | None,
) -> list[Trial]:
    trials = []
    for seed in seeds:
        for label, settings in plans:
            words = [*overrides, *settings, f"federation.seed={seed}"]
            trials.append(Trial(label, seed, configs.load(experiment, words, data_dir)))
    if not trials:
        raise ConfigError("there is nothing to run: name at least one of each")
    if len({trial.folder for trial in trials}) < len(trials):
        raise ConfigError("something is named twice")
    return trials


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
