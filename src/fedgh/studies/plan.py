"""From a study to the runs it needs, with a budget, and what that budget changes."""

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
"""Settings that are named one by one; of more it is said how many they are."""


def narrowed(study: Study, only: Sequence[str]) -> Study:
    """The cases and methods that `only` names; where it names none of either, all of them.

    A name may be a pattern such as cifar10-*.
    """
    known = [*(case.name for case in study.cases), *study.methods]
    if only and not known:
        raise ConfigError("--only: this study trains nothing")
    named: set[str] = set()
    for word in only:
        matching = [name for name in known if fnmatchcase(name, word)]
        if not matching:
            raise ConfigError(f"--only: {unknown('setting or method', word, known)}")
        named.update(matching)
    cases = [case for case in study.cases if case.name in named] or study.cases
    methods = [method for method in study.methods if method in named] or study.methods
    here = [[m for m in study.methods_of(case) if m in methods] for case in cases]
    left = [
        case.model_copy(update={"methods": chosen})
        for case, chosen in zip(cases, here, strict=True)
        if chosen
    ]
    if cases and not left:
        raise ConfigError(
            f"--only: {', '.join(methods)} is not run in {', '.join(case.name for case in cases)}"
        )
    return study.model_copy(update={"cases": left, "methods": methods})


def plan(
    study: Study,
    budget: BudgetName,
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
) -> list[Trial]:
    """A run for every case, method and seed."""
    return [
        replace(trial, place=case.name, home=case.folder(budget))
        for case in study.cases
        for trial in plan_comparison(
            case.experiment,
            ",".join(study.methods_of(case)),
            seeds,
            [*case.at(budget), *overrides],
            data_dir,
        )
    ]


def changes(study: Study, budget: BudgetName, overrides: Sequence[str] = ()) -> list[str]:
    """What the budget (and whoever runs it) made different from the paper's settings."""
    by_text: dict[str, dict[str, None]] = {}
    before, after = plan(study, "paper", [0]), plan(study, budget, [0], overrides)
    for old, new in zip(before, after, strict=True):
        for text in _differences(old.config, new.config):
            by_text.setdefault(text, {})[new.place] = None
    return [
        text if len(places) == len(study.cases) else f"{text} ({_named(list(places), study)})"
        for text, places in by_text.items()
    ]


def _named(places: list[str], study: Study) -> str:
    """Some settings of many, as words."""
    if len(places) > MAX_NAMED:
        return f"in {len(places)} of {len(study.cases)} settings"
    return ", ".join(places)


def _differences(before: Config, after: Config) -> list[str]:
    old, new = before.portable(), after.portable()
    return [
        f"{section}.{key} {old.get(section, {}).get(key)} → {value}"
        for section, table in new.items()
        for key, value in table.items()
        if value != old.get(section, {}).get(key)
    ]
