"""The runs that a study needs with a budget, and the settings that the budget changes."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from fedgh.choices import BudgetName
from fedgh.config import Config
from fedgh.errors import ConfigError, unknown
from fedgh.studies.study import Study
from fedgh.studies.sweep import Trial, plan_comparison

MAX_NAMED = 6
"""Maximum number of settings that a text lists by name; of more it gives the number."""


def select(study: Study, only: Sequence[str]) -> Study:
    """Return the part of a study with the settings and methods that `only` names.

    Names may be patterns such as cifar10-*. If `only` names no setting, all settings are selected,
    and likewise for methods. Raise ConfigError for a name without a match.
    """
    names = [*(setting.name for setting in study.settings), *study.methods]
    if only and not names:
        raise ConfigError("--only: this study trains nothing")
    selected: set[str] = set()
    for pattern in only:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(f"--only: {unknown('setting or method', pattern, names)}")
        selected.update(matches)
    settings = [setting for setting in study.settings if setting.name in selected]
    settings = settings or study.settings
    methods = [method for method in study.methods if method in selected] or study.methods
    part = []
    for setting in settings:
        if both := [method for method in study.methods_of(setting) if method in methods]:
            part.append(setting.model_copy(update={"methods": both}))
    if settings and not part:
        raise ConfigError(
            f"--only: {', '.join(methods)} is not run in "
            f"{', '.join(setting.name for setting in settings)}"
        )
    return study.model_copy(update={"settings": part, "methods": methods})


def plan(
    study: Study,
    budget: BudgetName,
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
) -> list[Trial]:
    """Return a trial for every setting, method and seed."""
    return [
        replace(trial, setting=setting.name, subfolder=setting.folder(budget))
        for setting in study.settings
        for trial in plan_comparison(
            setting.experiment,
            ",".join(study.methods_of(setting)),
            seeds,
            [*setting.overrides(budget), *overrides],
            data_dir,
        )
    ]


def changes(study: Study, budget: BudgetName, overrides: Sequence[str] = ()) -> list[str]:
    """Return the differences between the budget `paper` and this budget with `overrides`."""
    by_text: dict[str, dict[str, None]] = {}
    before, after = plan(study, "paper", [0]), plan(study, budget, [0], overrides)
    for old, new in zip(before, after, strict=True):
        for text in _differences(old.config, new.config):
            by_text.setdefault(text, {})[new.setting] = None
    return [
        text if len(names) == len(study.settings) else f"{text} ({_listed(list(names), study)})"
        for text, names in by_text.items()
    ]


def _listed(names: list[str], study: Study) -> str:
    """Return the names of some settings of a study, or their number if they are many."""
    if len(names) > MAX_NAMED:
        return f"in {len(names)} of {len(study.settings)} settings"
    return ", ".join(names)


def _differences(before: Config, after: Config) -> list[str]:
    """Return the settings that differ, also those of sections that only one of both uses."""
    used = [
        (section, key)
        for table in (after.portable(), before.portable())
        for section, keys in table.items()
        for key in keys
    ]
    old, new = before.to_table(), after.to_table()
    return [
        f"{section}.{key} {old[section].get(key)} → {new[section].get(key)}"
        for section, key in dict.fromkeys(used)
        if old[section].get(key) != new[section].get(key)
    ]
