"""Sweeps: several runs of one experiment, planned, run one after another, and resumed.

Runs with the same seed differ only in what is compared: partition, initial weights and the order of
the batches depend only on the seed (`core/rng.py`).
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
"""Reason of a run that was not tried."""

Plan = tuple[str, list[str]]
"""The label of a trial, and its settings as `section.key=value`."""

Watch = Callable[[str], AbstractContextManager[Callback]]
"""Function of a line about a run that returns a callback for it."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    label: str
    seed: int
    config: Config
    setting: str = ""  # name of the study's setting; runs of one setting are compared
    subfolder: str = ""  # folder of the setting's runs in the folder of the sweep

    @property
    def name(self) -> str:
        """Setting and label, without the seed."""
        return f"{self.setting}: {self.label}" if self.setting else self.label

    @property
    def run(self) -> str:
        """Setting, label and seed."""
        return f"{self.name}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """The run folder, relative to the folder of the sweep."""
        name = self.label.replace("/", "_").replace(
            ":", ","
        )  # Windows allows no colon in a file name
        return str(Path(self.subfolder, f"{name}-seed{self.seed}"))

    @property
    def work(self) -> float:
        """The amount of computation, relative to other trials on the same data."""
        federation = self.config.federation
        return federation.rounds * federation.participation * self.config.local.epochs


@dataclass(frozen=True)
class Outcome:
    """The finished runs of a sweep; for each missing run its name and the reason."""

    runs: list[tuple[Trial, RunFolder]]
    missing: dict[str, str]

    def of_setting(self, setting: str) -> "Outcome":
        """Return the part of one setting; names of missing runs do not repeat the setting."""
        prefix = f"{setting}: "
        missing = {
            run.removeprefix(prefix): reason
            for run, reason in self.missing.items()
            if run.startswith(prefix)
        }
        return Outcome([pair for pair in self.runs if pair[0].setting == setting], missing)

    def missing_reason(self, label: str) -> str | None:
        """Return why a run of a label is missing, or None; prefer other reasons to "not run"."""
        reasons = [
            reason for run, reason in self.missing.items() if run.startswith(f"{label}, seed ")
        ]
        tried = [reason for reason in reasons if reason != NOT_RUN]
        return next(iter([*tried, *reasons]), None)


def plan_comparison(
    experiment: str | Path | Config,
    methods: str,
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
    settings: Mapping[str, Sequence[str]] | None = None,
) -> list[Trial]:
    """Return one trial per method and seed.

    `methods` is `all`, or names with optional settings. A setting follows its method after a
    colon: `fedgh,fedgh:server_lr=0,standalone`. `settings` are further settings of each method, by
    its name; those of a label replace them.
    """
    plans = []
    for label in list(METHODS) if methods.strip() == "all" else split_words(methods):
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
    """Run the trials: start new runs, resume stopped ones and skip finished ones.

    All trials are prepared before the first one runs, so that a mistake is reported at once. A run
    that fails, for example because its training diverges, is added to `missing` with the reason,
    and the sweep continues. With `skip_impossible` this also holds for a method that cannot work
    with these clients; otherwise it raises ConfigError.
    """
    missing = {} if missing is None else missing
    ready = _prepare(trials, out, skip_impossible, missing)
    make_folder(out)
    runs = {
        trial.folder: (trial, folder)
        for trial, folder in finished_runs([trial for trial, _ in ready], out).runs
    }
    for number, (trial, prepared) in enumerate(ready, 1):
        if trial.folder in runs:
            continue
        remaining = [trial for trial, _ in ready[number - 1 :] if trial.folder not in runs]
        line = f"[{number}/{len(ready)}] {trial.run}"
        line += forecast(runs.values(), remaining)
        with watch(line) if watch else nullcontext(Callback()) as callback:
            try:
                folder = _run_or_resume(prepared, folder_of(trial, out), callback)
            except RunError as error:
                missing[trial.run] = str(error)
                continue
        if not folder.finished:
            missing[trial.run] = "a callback has stopped the run"
            continue
        runs[trial.folder] = (trial, folder)
    # A method that failed with one seed has no result: a mean over the other seeds would be biased.
    failed = {trial.name for trial, _ in ready if trial.run in missing}
    complete = [trial.folder for trial, _ in ready if trial.name not in failed]
    return Outcome([runs[folder] for folder in complete], missing)


def folder_of(trial: Trial, out: Path) -> RunFolder:
    """Return the run folder of a trial; raise RunError if its path in `out` has a symbolic link."""
    path = out
    for part in Path(trial.folder).parts:
        path /= part
        if path.is_symlink():
            raise RunError(f"{path} is a symbolic link, which is not followed; move the run here")
    return RunFolder(path)


def finished_runs(trials: Iterable[Trial], out: Path) -> Outcome:
    """Return the finished runs of these trials; the others are missing as "not run".

    Raise RunError if a run has other settings than its trial, or is damaged.
    """
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


def forecast(done: Iterable[tuple[Trial, RunFolder]], remaining: Iterable[Trial]) -> str:
    """Return an estimate of the remaining time as text; empty if no run is done.

    The time of a trial is estimated from the most similar runs that are done.
    """
    rates: dict[tuple[str, ...], list[float]] = {}
    for trial, folder in done:
        rate = folder.summary().seconds / trial.work
        for key in _similarity_keys(trial):
            rates.setdefault(key, []).append(rate)
    if not rates:
        return ""
    seconds = sum(
        trial.work * fmean(next(rates[key] for key in _similarity_keys(trial) if key in rates))
        for trial in remaining
    )
    return f"; about {timedelta(seconds=round(seconds))} remaining"


def _similarity_keys(trial: Trial) -> list[tuple[str, ...]]:
    """Return keys that similar trials share: method and setting, method only, any trial."""
    return [(trial.label, trial.setting), (trial.label,), ()]


def _prepare(
    trials: Iterable[Trial], out: Path, skip_impossible: bool, impossible: dict[str, str]
) -> list[tuple[Trial, Experiment]]:
    ready: list[tuple[Trial, Experiment]] = []
    sources: dict[tuple[object, ...], Source] = {}
    for trial in trials:
        data = trial.config.data
        key = (data.name, data.dir, data.path, data.image_size)
        if key not in sources:
            sources[key] = load_source(data)
        try:
            prepared = prepare(trial.config, source=sources[key])
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
    check_settings(folder, prepared.config)  # another process may have started it meanwhile
    return run_or_resume(prepared, folder.path, [callback])


def plan_trials(
    experiment: str | Path | Config,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    overrides: Sequence[str],
    data_dir: Path | None,
) -> list[Trial]:
    """Return one trial per plan and seed. Raise ConfigError if two of them are the same."""
    changes = [*overrides, *(setting for _, settings in plans for setting in settings)]
    if any(_key(change) == "federation.seed" for change in changes):
        raise ConfigError("federation.seed: seeds of a sweep are given with --seeds")
    for label, settings in plans:
        if [_key(setting) for setting in settings].count("method.name") > 1:
            raise ConfigError(f"'{label}': method.name is no setting; name the method itself")
    trials: list[Trial] = []
    for seed in seeds:
        for label, settings in plans:
            changes = [*overrides, *settings, f"federation.seed={seed}"]
            trial = Trial(label, seed, configs.load(experiment, changes, data_dir))
            for other in trials:
                if other.config == trial.config or other.folder == trial.folder:
                    raise ConfigError(
                        f"'{label}' and '{other.label}', seed {seed}, are the same run"
                    )
            trials.append(trial)
    if not trials:
        raise ConfigError("there is nothing to run: name at least one method and one seed")
    return trials


def _key(change: str) -> str:
    return change.partition("=")[0].strip()


def split_words(text: str) -> list[str]:
    """Split a text at commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def split_values(text: str) -> list[str]:
    """Return the values that commas separate; a value may be a list with commas."""
    try:
        parsed: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except configs.NOT_TOML:  # text without quotes
        return split_words(text)
    return [value if isinstance(value, str) else json.dumps(value, default=str) for value in parsed]
