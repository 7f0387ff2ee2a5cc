"""Sweeps: several runs of one experiment, planned, run and resumed.

Runs with the same seed differ only in what is compared: partition, initial weights and the order of
the batches depend only on the seed (`core/rng.py`).
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
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
from fedgh.studies.parallel import Launch, run_all
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment, load_source, prepare
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
        # Windows allows no colon in a file name.
        name = self.label.replace("/", "_").replace(":", ",")
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

    def without_incomplete(self) -> "Outcome":
        """Return the runs of methods that have all; a mean over only some seeds would be biased."""
        complete = [pair for pair in self.runs if self.missing_reason(pair[0].name) is None]
        return Outcome(complete, self.missing)

    def without_failed(self) -> "Outcome":
        """Return the runs of methods of which no run has failed; some may not be run yet."""
        failed = {run for run, reason in self.missing.items() if reason != NOT_RUN}
        names = {run.rpartition(", seed ")[0] for run in failed}
        return Outcome([pair for pair in self.runs if pair[0].name not in names], self.missing)


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
    jobs: int = 1,
) -> Outcome:
    """Run the trials: start new runs, resume stopped ones and skip finished ones.

    All trials are prepared before the first one runs, so that a mistake is reported at once. A run
    that fails, for example because its training diverges, is added to `missing` with the reason,
    and the sweep continues. With `skip_impossible` this also holds for a method that cannot work
    with these clients; otherwise it raises ConfigError.

    Up to `jobs` runs are trained at the same time, each with its share of the machine, to the same
    bits as one after another.
    """
    missing = {} if missing is None else missing
    ready = _prepare(trials, out, skip_impossible, missing)
    if jobs > 1 and any(prepared.config.run.engine == "ray" for _, prepared in ready):
        raise ConfigError("run.engine = 'ray' already uses all machines; leave out --jobs")
    make_folder(out)
    runs = {
        trial.folder: (trial, folder)
        for trial, folder in finished_runs([trial for trial, _ in ready], out).runs
    }
    waiting = [
        (number, trial, prepared)
        for number, (trial, prepared) in enumerate(ready, 1)
        if trial.folder not in runs
    ]
    jobs = min(jobs, len(waiting))
    trial_in = {out / trial.folder: trial for _, trial, _ in waiting}
    ended: set[Path] = set()

    def launches() -> Iterator[Launch]:
        for number, trial, prepared in waiting:
            left = [other for path, other in trial_in.items() if path not in ended]
            line = f"[{number}/{len(ready)}] {trial.run}" + forecast(runs.values(), left, jobs)
            watching = watch(line) if watch else nullcontext(Callback())
            yield Launch(prepared, folder_of(trial, out), watching)

    with closing(run_all(launches(), jobs)) as ends:
        for launch, failure in ends:
            trial = trial_in[launch.folder.path]
            ended.add(launch.folder.path)
            if failure is not None:
                missing[trial.run] = str(failure)
            elif not launch.folder.finished:
                missing[trial.run] = "a callback has stopped the run"
            else:
                runs[trial.folder] = (trial, launch.folder)
    # In the order of the trials, whichever ended first.
    missing.update({run: missing.pop(run) for run in [t.run for t, _ in ready] if run in missing})
    done = [runs[trial.folder] for trial, _ in ready if trial.folder in runs]
    return Outcome(done, missing).without_incomplete()


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


def collect_runs(trials: Sequence[Trial], out: Path, reasons: Mapping[str, str]) -> Outcome:
    """Return the finished runs of these trials; run nothing.

    `reasons` explains why runs, or all runs of a method, had no result when they were last tried.
    """
    finished = finished_runs(trials, out)
    names = {trial.run: trial.name for trial in trials}
    missing = {
        run: reasons.get(run) or reasons.get(names[run], reason)
        for run, reason in finished.missing.items()
    }
    return Outcome(finished.runs, missing)


def join_seeds(missing: Mapping[str, str]) -> dict[str, str]:
    """Return missing runs with their reasons; seeds of a method with the same reason are joined."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for run, reason in missing.items():
        name, found, seed = run.rpartition(", seed ")
        seeds.setdefault((name if found else run, reason), []).append(seed if found else "")
    return {_with_seeds(name, numbers): reason for (name, reason), numbers in seeds.items()}


def _with_seeds(name: str, numbers: Sequence[str]) -> str:
    if numbers == [""]:  # a method that cannot work has no seeds
        return name
    return f"{name}, seed{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def forecast(
    done: Iterable[tuple[Trial, RunFolder]], remaining: Sequence[Trial], jobs: int = 1
) -> str:
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
    parallel = max(1, min(jobs, len(remaining)))
    return f"; about {timedelta(seconds=round(seconds / parallel))} remaining"


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
