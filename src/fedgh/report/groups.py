"""Runs in groups that differ only in the seed; charts show a group as one mean."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from fedgh.runs.read import NamedRun
from fedgh.training.same import IRRELEVANT

Groups = Mapping[str, Sequence[NamedRun]]
"""Runs by the label under which they are shown; the runs of a group differ only in the seed."""


def group_by_seed(runs: Sequence[NamedRun]) -> dict[str, list[NamedRun]]:
    """Return the runs in groups that differ only in the seed, in order of their first run."""
    groups: list[list[NamedRun]] = []
    for run in runs:
        for group in groups:
            seeds = {other.settings.federation.seed for other in group}
            if run.settings.federation.seed not in seeds and _same_but_seed(group[0], run):
                group.append(run)
                break
        else:
            groups.append([run])
    labelled: dict[str, list[NamedRun]] = {}
    for group in groups:
        names = [run.label for run in group]
        label = _common_label(names)
        labelled[", ".join(names) if label in labelled else label] = group
    return labelled


def has_several_seeds(groups: Groups) -> bool:
    """Return whether a group has more than one run, so that it is shown as a mean."""
    return any(len(runs) > 1 for runs in groups.values())


def _same_but_seed(one: NamedRun, other: NamedRun) -> bool:
    a, b = one.identity, other.identity
    return (a.name, a.classes) == (b.name, b.classes) and _compared(one) == _compared(other)


def _compared(run: NamedRun) -> dict[tuple[str, str], Any]:
    """Return the settings of a run that change its results, without the seed."""
    return {
        (section, key): value
        for section, values in run.config.items()
        if isinstance(values, dict)
        for key, value in values.items()
        if key not in IRRELEVANT and (section, key) != ("federation", "seed")
    }


def _common_label(names: Sequence[str]) -> str:
    """Return the beginning that all labels share, without "seed": fedgh-seed0, fedgh-seed1."""
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda chars: len(set(chars)) == 1, zip(*names, strict=False))
    common = re.sub(r"[\W_]*seed\d*$|[\W_]+$", "", "".join(first for first, *_ in same))
    return common or ", ".join(names)
