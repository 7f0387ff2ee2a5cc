"""The tables of the study as-published: the worth of each deviation of the published code."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fedgh.runs.folder import RunFolder
from fedgh.studies.study import Setting, Study
from fedgh.studies.sweep import Outcome
from fedgh.tables import Cell, Column, Sheet

TRAINED, FROZEN = "fedgh", "fedgh:server_lr=0"


@dataclass(frozen=True)
class Readings:
    """The accuracies in percent that one run has, depending on who is averaged and when."""

    last_all: float  # after the last round, mean over all clients: as fedgh reports it
    last_selected: float
    best_all: float  # the highest over rounds; selected on test data
    best_selected: float


def readings(run: RunFolder) -> Readings:
    """Return the readings of a finished run."""
    of_all, of_selected = [], []
    for record in run.records():
        if record.accuracy is not None:
            known = np.array([np.nan if a is None else a for a in record.accuracies])
            of_all.append(100 * float(np.nanmean(known)))
            of_selected.append(100 * float(np.nanmean(known[record.participants])))
    return Readings(of_all[-1], of_selected[-1], max(of_all), max(of_selected))


class _Results:
    """The readings of a study by setting, method and seed."""

    def __init__(self, outcome: Outcome) -> None:
        self._of: dict[tuple[str, str], dict[int, Readings]] = {}
        for trial, run in outcome.runs:
            self._of.setdefault((trial.setting, trial.label), {})[trial.seed] = readings(run)

    def of(self, setting: Setting, method: str) -> dict[int, Readings]:
        """Return the readings by seed; none if the method was not run."""
        return self._of.get((setting.name, method), {})

    def level(self, setting: Setting, method: str, reading: str = "last_all") -> float | None:
        """Return the mean over seeds of a reading."""
        values = [getattr(each, reading) for each in self.of(setting, method).values()]
        return fmean(values) if values else None

    def worth(
        self,
        changed: tuple[Setting, str, str],
        base: tuple[Setting, str],
    ) -> float | None:
        """Return a reading minus the base's last round over all clients, over shared seeds."""
        setting, method, reading = changed
        ours, theirs = self.of(setting, method), self.of(*base)
        differences = [
            getattr(ours[seed], reading) - theirs[seed].last_all for seed in ours if seed in theirs
        ]
        return fmean(differences) if differences else None


def sheets(study: Study, outcome: Outcome) -> list[Sheet]:
    """Return the table of what each deviation is worth, and that of all readings."""
    results = _Results(outcome)
    return [_worths(study, results), _levels(study, results)]


def _worths(study: Study, results: _Results) -> Sheet:
    bases = [setting for setting in study.settings if setting.base is None]
    columns = [Column("deviation")]
    parts = []
    for base in bases:
        columns += [
            Column(f"{base.title}: standalone", signed=True),
            Column(f"{base.title}: fedgh", signed=True),
        ]
        parts.append(_worths_of(study, base, results))
    rows: list[list[Cell]] = [
        [text, *(cell for part in parts for cell in part[text])]
        for text in dict.fromkeys(text for part in parts for text in part)
    ]
    note = (
        "In points, against the accuracy after the last round as a mean over all clients, on the "
        "same seeds. The last row combines all deviations with the best round and the mean over "
        "the selected clients, which is what the published code prints; that the paper prints the "
        "best round is our hypothesis."
    )
    return Sheet("", "What each deviation is worth", columns, rows, note)


def _worths_of(study: Study, base: Setting, results: _Results) -> dict[str, list[Cell]]:
    """Return the cells of a federation by deviation: standalone, FedGH."""
    methods = ("standalone", TRAINED)
    rows: dict[str, list[Cell]] = {}
    for text, reading in (
        ("mean over the selected clients", "last_selected"),
        ("best round", "best_all"),
        ("best round, mean over the selected clients", "best_selected"),
    ):
        rows[text] = [results.worth((base, each, reading), (base, each)) for each in methods]
    frozen = results.worth((base, FROZEN, "last_all"), (base, TRAINED))
    rows["header not trained"] = [None, frozen]
    for setting in study.settings:
        if setting.base != base.name:
            continue
        own = study.methods_of(setting)
        fedgh = TRAINED if TRAINED in own else FROZEN
        together = fedgh == FROZEN
        reading = "best_selected" if together else "last_all"
        text = setting.title + (", best round, selected clients" if together else "")
        rows[text] = [
            results.worth((setting, ours, reading), (base, each))
            for ours, each in zip(("standalone", fedgh), methods, strict=True)
        ]
    return rows


def _levels(study: Study, results: _Results) -> Sheet:
    columns = [
        Column("setting"),
        Column("method"),
        Column("last round, all, %"),
        Column("last round, selected, %"),
        Column("best round, all, %"),
        Column("best round, selected, %"),
        Column("paper, %"),
        Column("seeds"),
    ]
    rows: list[list[Cell]] = []
    for setting in study.settings:
        for method in study.methods_of(setting):
            published = setting.published.get(method)
            rows.append(
                [
                    study.full_title(setting),
                    method,
                    *_all_readings(results, setting, method),
                    published.accuracy if published else None,
                    ", ".join(map(str, sorted(results.of(setting, method)))) or "not run",
                ]
            )
    note = (
        "all: mean over all clients; selected: mean over the clients that the server selected in "
        "that round. The best round is selected on test data, and therefore too high."
    )
    return Sheet("levels", "Accuracy by what is reported", columns, rows, note)


def _all_readings(results: _Results, setting: Setting, method: str) -> Iterable[Cell]:
    names = ("last_all", "last_selected", "best_all", "best_selected")
    return [results.level(setting, method, name) for name in names]
