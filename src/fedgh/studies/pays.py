"""When federating pays: how far each method is ahead of training alone, and what it sends."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgh.runs.folder import RunFolder
from fedgh.studies.measured import readable
from fedgh.studies.result import kb, percent, short
from fedgh.studies.statistics import Paired, lead_over
from fedgh.studies.study import Case, Lead, Study
from fedgh.studies.sweep import NOT_RUN, Outcome, Trial
from fedgh.tables import Cell, Column, Sheet

ALONE = "standalone"
"""The method that gains are counted from."""

ROUNDING = 1e-9
"""Points by which a lead may miss its limit: the same numbers may add up differently."""

Where = Literal["own", "all"]
METRICS: dict[Where, str] = {"own": "accuracy", "all": "global_accuracy"}

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """One method in one setting: what its runs measured, by seed."""

    case: Case
    method: str
    why_not: str | None  # there is no run, or not of all seeds
    scores: dict[Where, dict[int, Scores]]  # of the clients; an earlier version has no "all"
    bytes_per_client: list[float]  # over the whole run

    def accuracy(self, where: Where) -> float | None:
        """The mean over seeds of the mean over clients."""
        means = [np.nanmean(scores) for scores in self.scores[where].values()]
        return float(np.mean(means)) if means else None

    def lead(self, other: "Entry", where: Where) -> Paired | None:
        """How far it is ahead of another method in the same setting."""
        return lead_over(self.scores[where], other.scores[where])

    @property
    def sent(self) -> float | None:
        """Bytes up and down per client over the whole run, mean over seeds."""
        return float(np.mean(self.bytes_per_client)) if self.bytes_per_client else None


@dataclass(frozen=True)
class Comparison:
    """What became of a lead in one setting over one rival."""

    lead: Lead
    case: Case
    rival: str
    found: Paired | None
    why_not: str  # it was not found, if it was not

    @property
    def verdict(self) -> str:
        """Whether the lead is as large as it is said to be."""
        if self.found is None:
            return short(self.why_not)
        mean, error = self.found.mean, self.found.error
        if self.lead.points is not None and 100 * mean < self.lead.points - ROUNDING:
            return "no"
        if self.lead.errors is None:
            return "yes"
        if error is None:
            return "too few runs"
        return "yes" if mean > self.lead.errors * error else "no"

    @property
    def margin(self) -> float:
        """How far the lead is from being too small, to find the narrowest."""
        if self.found is None:
            return np.inf
        needed = []
        if self.lead.points is not None:
            needed.append(self.lead.points / 100)
        if self.lead.errors is not None:
            needed.append(self.lead.errors * (self.found.error or 0.0))
        return self.found.mean - max(needed)


def entries(study: Study, outcome: Outcome) -> list[Entry]:
    """Every method in every setting, whether it was run or not."""
    found: list[Entry] = []
    for case in study.cases:
        here = outcome.at(case.name)
        for method in study.methods_of(case):
            runs = [(trial, run) for trial, run in here.runs if trial.label == method]
            scores = {where: _scores(runs, metric) for where, metric in METRICS.items()}
            sent = [_sent(trial, run) for trial, run in runs]
            found.append(Entry(case, method, here.why_not(method), scores, sent))
    return found


def gains(found: Iterable[Entry], where: Where) -> list[tuple[Entry, Paired | None]]:
    """Every entry with its lead over training alone in the same setting."""
    found = list(found)
    alone = {entry.case.name: entry for entry in found if entry.method == ALONE}
    return [
        (
            entry,
            entry.lead(alone[entry.case.name], where)
            if entry.method != ALONE and entry.case.name in alone
            else None,
        )
        for entry in found
    ]


def main_sheet(found: Sequence[Entry], seeds: int) -> Sheet:
    """Accuracy, gain over training alone, and what was sent for it."""
    columns = [
        Column("setting"),
        Column("method"),
        Column("own data, %"),
        Column("gain, own data", signed=True),
        Column("± s.e., own data"),
        Column("all classes, %"),
        Column("gain, all classes", signed=True),
        Column("± s.e., all classes"),
        Column("KB per client", 1),
        Column("seeds"),
        Column("s.e. over"),
    ]
    rows: list[list[Cell]] = []
    both = zip(gains(found, "own"), gains(found, "all"), strict=True)
    for (entry, own), (_, everything) in both:
        ran = entry.scores["own"]
        rows.append(
            [
                entry.case.title,
                entry.method,
                percent(entry.accuracy("own")) if ran else short(entry.why_not),
                *_points(own),
                percent(entry.accuracy("all")),
                *_points(everything),
                kb(entry.sent),
                f"{len(ran)} of {seeds}",
                _over(own, everything),
            ]
        )
    note = (
        f"Gains in points over {ALONE} after the last round, on the clients' own test data and "
        "over all classes on the test data of all clients; never the best round. Clients are "
        "paired within a seed. With several seeds the standard error is that of the seeds' means; "
        "with one it is taken over its clients, which flatters, since they share a server. KB "
        "sent up and down per client over the whole run; 1 KB = 1024 B. A dash: nothing to "
        "compare with, or a run of an earlier version, which did not measure it."
    )
    return Sheet("", "Gain over training alone", columns, rows, note)


def claim_sheets(study: Study, found: Sequence[Entry]) -> list[Sheet]:
    """What became of every lead that the study names: as a whole, and setting by setting."""
    compared = [(lead, list(_compare(lead, study, found))) for lead in study.leads]
    if not compared:
        return []
    return [
        _claims(compared),
        _settings([one for _, each in compared for one in each]),
    ]


def _claims(compared: Iterable[tuple[Lead, Sequence[Comparison]]]) -> Sheet:
    columns = [
        Column("claim"),
        Column("holds?"),
        Column("comparisons that bear it out"),
        Column("without a result", 0),
        Column("narrowest lead", signed=True),
        Column("± s.e."),
        Column("where"),
    ]
    rows: list[list[Cell]] = []
    for lead, each in compared:
        words = [one.verdict for one in each]
        narrowest = min(each, key=lambda one: one.margin)
        where = f"{narrowest.case.title}: {narrowest.rival}" if narrowest.found else ""
        rows.append(
            [
                lead.text,
                _whole(words),
                f"{words.count('yes')} of {len(words)}",
                sum(one.found is None for one in each),
                *_points(narrowest.found),
                where,
            ]
        )
    note = (
        "A claim holds when all of its comparisons bear it out; those without a result bear out "
        "nothing. Over all classes, runs of an earlier version count as not run: they did not "
        "measure it. Two standard errors are a weak bar with few seeds: taken alone, a method "
        "that gains nothing passes it once in 17 with five seeds, once in 11 with three."
    )
    return Sheet("claims", "Does it hold?", columns, rows, note)


def _settings(compared: Iterable[Comparison]) -> Sheet:
    columns = [
        Column("claim"),
        Column("setting"),
        Column("over"),
        Column("holds?"),
        Column("lead, points", signed=True),
        Column("± s.e."),
        Column("s.e. over"),
    ]
    rows: list[list[Cell]] = [
        [
            one.lead.text,
            one.case.title,
            one.rival,
            one.verdict,
            *_points(one.found),
            one.found.over if one.found else None,
        ]
        for one in compared
    ]
    return Sheet("claims-settings", "Setting by setting", columns, rows)


def _whole(words: Sequence[str]) -> str:
    """One word for all comparisons of a claim: the worst there is a number for."""
    for word in ("no", "too few runs"):
        if word in words:
            return word
    if "yes" not in words:
        return min(words)  # "no result" before "not run"
    return "yes" if set(words) == {"yes"} else "yes, of those run"


def _compare(lead: Lead, study: Study, found: Sequence[Entry]) -> Iterator[Comparison]:
    for case in filter(lead.speaks_of, study.cases):
        here = {entry.method: entry for entry in found if entry.case == case}
        ours = here[lead.of]
        for rival in lead.over or [method for method in here if method != lead.of]:
            theirs = here[rival]
            reasons = [why for why in (ours.why_not, theirs.why_not) if why not in (None, NOT_RUN)]
            why_not = reasons[0] if reasons else NOT_RUN
            yield Comparison(lead, case, rival, ours.lead(theirs, lead.where), why_not)


def _scores(runs: Iterable[tuple[Trial, RunFolder]], metric: str) -> dict[int, Scores]:
    """By seed, each client's score after the last round, where that was measured."""
    found: dict[int, Scores] = {}
    for trial, run in runs:
        with readable(run):
            listed = run.records()[-1].per_client.get(metric)
            if listed is None:
                continue
            scores = np.array(listed, dtype=np.float64)
            if scores.shape != (trial.config.federation.clients,):
                raise ValueError(f"{metric}_per_client is not a number for each client")
        if not np.isnan(scores).all():
            found[trial.seed] = scores
    return found


def _sent(trial: Trial, run: RunFolder) -> float:
    return float(run.records()[-1].bytes_total / trial.config.federation.clients)


def _points(found: Paired | None) -> list[Cell]:
    return [None, None] if found is None else [percent(found.mean), percent(found.error)]


def _over(own: Paired | None, everything: Paired | None) -> str | None:
    """What the errors are taken over; both, where that differs."""
    if own and everything and own.over != everything.over:
        return f"{own.over}; all classes {everything.over}"
    known = own or everything
    return known.over if known else None
