"""Tuning of several methods for a fair comparison: the same number of trials for each method.

The settings with the highest validation accuracy are stored in a TOML file, a table per method:

    [fedproto]
    local.lr = 0.03
    method.lam = 10.0

`fedgh tune --methods` writes this file, and `fedgh compare --settings` reads it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np
import tomli_w

from fedgh.config import Config, read_toml
from fedgh.errors import ConfigError, unknown
from fedgh.methods import METHODS, plugins
from fedgh.renames import SETTINGS
from fedgh.studies.statistics import Row
from fedgh.studies.sweep import (
    Plan,
    Trial,
    plan_trials,
    split_label,
    split_values,
    split_words,
)

Settings = dict[str, list[str]]
"""For each method, settings as `section.key=value`."""

SHARED_SECTIONS = ("federation", "data", "public", "attack")
"""Sections that all methods of a comparison have in common: the clients, data and rounds."""

RANGE = re.compile(r"(?P<low>[^,\s]+)\.\.(?P<high>[^,\s]+)")
"""A range of values, such as 0.001..0.1, from which values are drawn log-uniformly."""


@dataclass(frozen=True)
class Axis:
    """A setting to tune, and its values: a list, or a range of positive numbers."""

    key: str
    method: str | None  # the only method that has this setting; None if all methods have it
    values: tuple[str, ...] = ()  # empty if the values are the range from `low` to `high`
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # draw whole numbers

    def draws(self) -> Iterator[str]:
        """Yield an endless sequence of random values, the same sequence for every method.

        Values of a list are drawn without replacement; when all are drawn, drawing starts again.
        """
        rng = np.random.default_rng([*self.key.encode()])
        while True:
            if self.values:
                yield from (self.values[number] for number in rng.permutation(len(self.values)))
            else:
                value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
                short = str(round(value)) if self.whole else f"{value:.3g}"
                yield short if self.low <= float(short) <= self.high else repr(value)


def plan_search(
    experiment: str | Path,
    grid: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
    *,
    methods: str | None = None,
    points: int | None = None,
) -> list[Trial]:
    """Return one trial for each method, point and seed. A point has one value for each setting.

    `methods` lists the methods; by default it is the method of the experiment. An entry of `grid`
    is `section.key=values`, or `name.key=values` for a setting that only the method `name` has.

    By default the points are all combinations of values. With `points`, this number of different
    points is drawn at random for each method; settings that the methods share get the same values.
    Raise ConfigError if the methods would not have the same number of points.
    """
    plans = _plan_points(methods, grid, points)
    return plan_trials(experiment, plans, seeds, overrides, data_dir)


def _plan_points(methods: str | None, grid: Sequence[str], wanted: int | None) -> list[Plan]:
    labels = [("", [])] if methods is None else list(map(split_label, split_words(methods)))
    names = [name for name, _ in labels]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--methods names {name} twice; each method is tuned once")
    axes: list[Axis] = []
    for text in grid:
        axis = _parse_axis(text, names)
        if any((axis.key, axis.method) == (other.key, other.method) for other in axes):
            raise ConfigError(
                f"--grid {text}: this setting has a second --grid; use one for all values"
            )
        axes.append(axis)
    if not labels:
        raise ConfigError("--methods names no method; e.g. --methods fedgh,fedproto")
    if not axes:
        raise ConfigError("nothing to search: give at least one --grid section.key=value,value")
    points: dict[str, list[tuple[str, ...]]] = {}
    for name, settings in labels:
        own = [axis for axis in axes if axis.method in (None, name)]
        if not own:
            raise ConfigError(f"--methods {name}: no --grid has a setting of this method")
        searched = {axis.key for axis in own}
        for setting in settings:
            if (key := setting.partition("=")[0]) in searched:
                raise ConfigError(f"{key} of {name} is in --methods and in --grid; give it once")
        drawn = _all_points(own) if wanted is None else _draw(name, own, wanted)
        points[name] = [(*settings, *point) for point in drawn]
    if len({len(tried) for tried in points.values()}) > 1:
        counts = ", ".join(f"{name} {len(tried)}" for name, tried in points.items())
        fewest = min(map(len, points.values()))
        raise ConfigError(
            f"the grids have different numbers of points ({counts}); use --trials {fewest} to draw "
            "the same number for each method"
        )
    return [_plan(name, point) for name, tried in points.items() for point in tried]


def _plan(name: str, point: tuple[str, ...]) -> Plan:
    if not name:
        return " ".join(point), list(point)
    return " ".join([name, *point]), [f"method.name={name}", *point]


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows grouped by method, sorted in each group by falling validation accuracy."""
    names = list(dict.fromkeys(method_in(row.label) for row in rows))

    def order(row: Row) -> tuple[int, float]:
        accuracy = row.validation_accuracy
        place = names.index(method_in(row.label))
        return place, math.inf if accuracy is None else -accuracy

    return sorted(rows, key=order)


def best_of_each(ranked_rows: Sequence[Row]) -> dict[str, Row]:
    """Return the first row of each method, by the method's name in `--methods`."""
    best: dict[str, Row] = {}
    for row in ranked_rows:
        best.setdefault(method_in(row.label), row)
    return best


def method_in(label: str) -> str:
    """Return the method that a label starts with; empty without `--methods`."""
    word = label.partition(" ")[0]
    return "" if "=" in word else word


def best_config(ranked_rows: Sequence[Row], trials: Sequence[Trial]) -> Config:
    """Return the configuration of the first row, with the first seed of its trials."""
    return _configs(trials)[ranked_rows[0].label]


def settings_toml(best: Mapping[str, Row], trials: Sequence[Trial]) -> str:
    """Return the settings of the best row of each method, as the text of a TOML file."""
    configs = _configs(trials)
    return tomli_w.dumps(
        {name: _settings_of(row.label, configs[row.label]) for name, row in best.items()}
    )


def read_settings(path: Path) -> Settings:
    """Read the settings of each method. Raise ConfigError if the file is not valid."""
    settings: Settings = {}
    for name, table in read_toml(path, follow=True).items():
        if ":" not in name and name not in {*METHODS, *plugins()}:
            raise ConfigError(f"{path}: {unknown('method', name, [*METHODS, *plugins()])}")
        sections = table.values() if isinstance(table, dict) else [None]
        if not all(isinstance(section, dict) for section in sections):
            raise ConfigError(
                f"{path}: [{name}] should have lines section.key = value, e.g. local.lr = 0.1"
            )
        settings[name] = [
            f"{section}.{key}={_as_toml(value, f'{path}: [{name}] {section}.{key}')}"
            for section, values in table.items()
            for key, value in values.items()
        ]
        check_shared(f"{path}: [{name}]", table)
    return settings


def _as_toml(value: object, where: str) -> str:
    """Return a value as TOML, in which it is also text of a setting."""
    if isinstance(value, dict):
        raise ConfigError(f"{where} is a table; expected a value")
    try:
        return tomli_w.dumps({"value": value}).partition("=")[2].strip()
    except ValueError as error:  # a whole number of thousands of digits
        raise ConfigError(f"{where}: {error}") from None


def check_shared(where: str, sections: Iterable[str]) -> None:
    """Raise ConfigError if a setting of one method would give it other data than the others."""
    for section in sections:
        if section in SHARED_SECTIONS:
            raise ConfigError(
                f"{where}: compared methods have the same [{section}]; set it for all with --set"
            )


def _configs(trials: Sequence[Trial]) -> dict[str, Config]:
    """Return, for each label, the configuration of its first trial."""
    configs: dict[str, Config] = {}
    for trial in trials:
        configs.setdefault(trial.label, trial.config)
    return configs


def _settings_of(label: str, config: Config) -> dict[str, dict[str, object]]:
    """Return the settings named in a label, with their parsed values, section by section."""
    table = config.to_table()
    chosen: dict[str, dict[str, object]] = {}
    for word in re.split(r" (?=\w+\.\w+=)", label)[1:]:  # after the method's name
        name = word.partition("=")[0]
        section, _, key = SETTINGS.get(name, name).partition(".")
        chosen.setdefault(section, {})[key] = table[section][key]
    return chosen


def _parse_axis(text: str, names: Sequence[str]) -> Axis:
    key, _, values = map(str.strip, text.partition("="))
    section, _, last = key.rpartition(".")
    if not values or not section:
        raise ConfigError(
            f"--grid {text}: expected section.key=value,value, e.g. local.lr=0.01,0.1, or for one "
            "method fedproto.lam=0.1..10"
        )
    method = section if section in names else None
    if method is not None:
        key = f"method.{last}"
    elif section == "method" and len(names) > 1:
        raise ConfigError(
            f"--grid {text}: name the method that has this setting, e.g. {names[0]}.{last}"
        )
    if names != [""]:
        check_shared(f"--grid {text}", [section])
    if found := RANGE.fullmatch(values):
        return _parse_range(text, key, method, found["low"], found["high"])
    return Axis(key, method, tuple(split_values(values)))


def _parse_range(text: str, key: str, method: str | None, low: str, high: str) -> Axis:
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = (0.0, 0.0)
    if not 0 < ends[0] < ends[1] < math.inf:
        raise ConfigError(f"--grid {text}: a range is LOW..HIGH with 0 < LOW < HIGH")
    whole = low.isdigit() and high.isdigit()
    return Axis(key, method, low=ends[0], high=ends[1], whole=whole)


def _all_points(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    if any(not axis.values for axis in axes):
        raise ConfigError("a range LOW..HIGH needs --trials, the number of points to draw from it")
    return list(product(*([f"{axis.key}={value}" for value in axis.values] for axis in axes)))


def _draw(name: str, axes: Sequence[Axis], wanted: int) -> list[tuple[str, ...]]:
    """Return `wanted` different random points. Raise ConfigError if there are fewer."""
    draws = zip(*(axis.draws() for axis in axes), strict=True)
    points: dict[tuple[str, ...], None] = {}
    for values in islice(draws, 100 * wanted):
        point = tuple(f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True))
        points[point] = None
        if len(points) == wanted:
            return list(points)
    whose = f" for {name}" if name else ""
    raise ConfigError(
        f"--trials {wanted}: only {len(points)} different points were found{whose}; widen the "
        "--grid or lower --trials"
    )
