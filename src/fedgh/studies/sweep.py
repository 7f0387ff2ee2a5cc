"""Many runs of one experiment: planned, run one by one, resumed where they were stopped.

The runs of one seed share everything but what is compared: partition, initial weights and the
order of the batches are functions of the seed (`core/rng.py`).
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgh import config as configs
from fedgh.config import Config
from fedgh.data.sources import Source
from fedgh.errors import ConfigError, MethodError, RunError
from fedgh.files import make_folder
from fedgh.methods import METHODS
from fedgh.runs.folder import RunFolder
from fedgh.runs.summary import check_finished
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment, load_source, prepare
from fedgh.training.loop import run_or_resume
from fedgh.training.same import check_same, check_settings

NOT_RUN = "not run"

Plan = tuple[str, list[str]]
"""The label of a trial, and its settings as `section.key=value`."""

Watch = Callable[[str], AbstractContextManager[Callback]]
"""Given a line about a run, a callback for it."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    label: str
    seed: int
    config: Config
    place: str = ""  # what runs belong to that are compared, when a sweep has several
    home: str = ""  # the folder for these

    @property
    def name(self) -> str:
        """What it is called whatever its seed."""
        return f"{self.place}: {self.label}" if self.place else self.label

    @property
    def run(self) -> str:
        """What it is called with its seed."""
        return f"{self.name}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Its run folder, seen from the folder of the sweep."""
        name = self.label.replace("/", "_").replace(":", ",")  # no file of Windows has a colon
        return str(Path(self.home, f"{name}-seed{self.seed}"))

    @property
    def work(self) -> float:
        """How much there is to compute, compared with others on the same data."""
        federation = self.config.federation
        return federation.rounds * federation.participation * self.config.local.epochs


@dataclass(frozen=True)
class Outcome:
    """A sweep: its finished runs, and by the names of others why there is none."""

    runs: list[tuple[Trial, RunFolder]]
    missing: dict[str, str]

    def at(self, place: str) -> "Outcome":
        """The runs of one place, and what is missing there, without its name."""
        start = f"{place}: "
        missing = {
            run.removeprefix(start): why
            for run, why in self.missing.items()
            if run.startswith(start)
        }
        return Outcome([pair for pair in self.runs if pair[0].place == place], missing)

    def why_not(self, label: str) -> str | None:
        """Why there is no run of a label, whatever its seed; a real reason before "not run"."""
        reasons = [why for run, why in self.missing.items() if run.startswith(f"{label}, seed ")]
        return next((why for why in reasons if why != NOT_RUN), reasons[0] if reasons else None)


def plan_comparison(
    experiment: str | Path | Config,
    methods: str,
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
    settings: Mapping[str, Sequence[str]] | None = None,
) -> list[Trial]:
    """Return one trial per method and seed. `methods` is `all`, or names with optional settings.

    A setting follows its method after a colon: `fedgh,fedgh:server_lr=0,standalone`. `settings` are
    further settings of each method, by its name; those of a label replace them.
    """
    plans = []
    for label in list(METHODS) if methods == "all" else split_words(methods):
        name, own = split_label(label)
        more = (settings or {}).get(name, ())
        plans.append((label, [f"method.name={name}", *more, *own]))
    return plan_trials(experiment, plans, seeds, overrides, data_dir)


def split_label(label: str) -> tuple[str, list[str]]:
    """Split `fedgh:server_lr=0` into the method's name and its settings, `method.server_lr=0`."""
    # A colon also stands in names such as package.module:Class.
    name, *settings = re.split(r":(?=\w+=)", label)
    if name.partition(":")[0] in METHODS and name not in METHODS:
        raise ConfigError(f"--methods {label}: expected method:setting=value")
    return name, [f"method.{setting}" for setting in settings]


def run_trials(
    trials: Iterable[Trial],
    out: Path,
    watch: Watch | None = None,
    skip_impossible: bool = False,
    missing: dict[str, str] | None = None,
) -> Outcome:
    """Run what is not there yet, resume what was stopped, skip what is done.

    Everything is prepared before anything runs, so that a mistake shows at once. With
    `skip_impossible` a method that cannot work with these clients is noted, not fatal. So is, in
    any case, a run that cannot go on: that its training diverges is a result, too. Both are put
    into `missing` as they are found.
    """
    missing = {} if missing is None else missing
    ready = _prepare(trials, out, skip_impossible, missing)
    make_folder(out)
    runs = {
        trial.folder: (trial, folder)
        for trial, folder in found([trial for trial, _ in ready], out).runs
    }
    for number, (trial, prepared) in enumerate(ready, 1):
        if trial.folder in runs:
            continue
        left = [trial for trial, _ in ready[number - 1 :] if trial.folder not in runs]
        line = f"[{number}/{len(ready)}] {trial.run}"
        line += forecast(runs.values(), left)
        with watch(line) if watch else nullcontext(Callback()) as callback:
            try:
                folder = _run_or_resume(prepared, folder_of(trial, out), callback)
            except RunError as error:
                missing[trial.run] = str(error)
                continue
        if not folder.finished:
            missing[trial.run] = "a callback has stopped it"
            continue
        runs[trial.folder] = (trial, folder)
    # A mean over the seeds that went well would flatter what failed with others.
    failed = {trial.name for trial, _ in ready if trial.run in missing}
    whole = [trial.folder for trial, _ in ready if trial.name not in failed]
    return Outcome([runs[folder] for folder in whole], missing)


def folder_of(trial: Trial, out: Path) -> RunFolder:
    """The run folder of a trial; RunError when a link in `out` leads elsewhere."""
    path = out
    for part in Path(trial.folder).parts:
        path /= part
        if path.is_symlink():
            raise RunError(f"{path} is a symbolic link; a run is not looked for behind it")
    return RunFolder(path)


def found(trials: Iterable[Trial], out: Path) -> Outcome:
    """The finished runs that are there, without running any; by run, which are not."""
    runs: list[tuple[Trial, RunFolder]] = []
    missing: dict[str, str] = {}
    for trial in trials:
        folder = folder_of(trial, out)
        check_settings(folder, trial.config)
        if folder.finished:
            check_finished(folder, trial.config.federation.rounds)
            runs.append((trial, folder))
        else:
            missing[trial.run] = NOT_RUN
    return Outcome(runs, missing)


def forecast(done: Iterable[tuple[Trial, RunFolder]], left: Iterable[Trial]) -> str:
    """How long the rest may take, judged by what is done: by runs as much alike as there are."""
    rates: dict[tuple[str, ...], list[float]] = {}
    for trial, folder in done:
        rate = folder.summary().seconds / trial.work
        for alike in _likenesses(trial):
            rates.setdefault(alike, []).append(rate)
    if not rates:
        return ""
    seconds = sum(
        trial.work * fmean(next(rates[alike] for alike in _likenesses(trial) if alike in rates))
        for trial in left
    )
    return f"; what is left may take {timedelta(seconds=round(seconds))}"


def _likenesses(trial: Trial) -> list[tuple[str, ...]]:
    """From most to least: the same method on the same setting, the same method, anything."""
    return [(trial.label, trial.place), (trial.label,), ()]


def _prepare(
    trials: Iterable[Trial], out: Path, skip_impossible: bool, impossible: dict[str, str]
) -> list[tuple[Trial, Experiment]]:
    ready: list[tuple[Trial, Experiment]] = []
    sources: dict[tuple[object, ...], Source] = {}
    for trial in trials:
        data = trial.config.data
        which = (data.name, data.dir, data.path, data.image_size)
        if which not in sources:
            sources[which] = load_source(data)
        try:
            prepared = prepare(trial.config, source=sources[which])
        except MethodError as error:
            if not skip_impossible:
                raise
            impossible[trial.name] = str(error)
            continue
        folder = folder_of(trial, out)
        check_settings(folder, prepared.config)
        if folder.config.exists():
            check_same(folder, prepared)
        ready.append((trial, prepared))
    return ready


def _run_or_resume(prepared: Experiment, folder: RunFolder, callback: Callback) -> RunFolder:
    check_settings(folder, prepared.config)  # another process may have begun it since we looked
    return run_or_resume(prepared, folder.path, [callback])


def plan_trials(
    experiment: str | Path | Config,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    overrides: Sequence[str],
    data_dir: Path | None,
) -> list[Trial]:
    """Return one trial per plan and seed. Raise ConfigError if two of them are the same."""
    words = [*overrides, *(setting for _, settings in plans for setting in settings)]
    if any(word.partition("=")[0].strip() == "federation.seed" for word in words):
        raise ConfigError("federation.seed: seeds are given with --seeds")
    trials: list[Trial] = []
    for seed in seeds:
        for label, settings in plans:
            words = [*overrides, *settings, f"federation.seed={seed}"]
            trial = Trial(label, seed, configs.load(experiment, words, data_dir))
            for other in trials:
                if other.config == trial.config or other.folder == trial.folder:
                    raise ConfigError(f"'{label}' and '{other.label}', seed {seed}, are the same")
            trials.append(trial)
    if not trials:
        raise ConfigError("there is nothing to run: name at least one of each")
    return trials


def split_words(text: str) -> list[str]:
    """Split a text at commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def split_values(text: str) -> list[str]:
    """The values between commas, also where they are lists themselves."""
    try:
        parsed: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except configs.NOT_TOML:  # bare words
        return split_words(text)
    return [value if isinstance(value, str) else json.dumps(value, default=str) for value in parsed]
