"""Tables of the study `pays`: the gain of each method over training alone, and its bytes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgh.runs.folder import RunFolder
from fedgh.studies.measured import damage_as_run_error
from fedgh.studies.result import kb, percent, short_reason
from fedgh.studies.statistics import PairedLead, lead_over
from fedgh.studies.study import Lead, Setting, Study
from fedgh.studies.sweep import NOT_RUN, Outcome, Trial
from fedgh.tables import Cell, Column, Sheet

ALONE = "standalone"
"""The method of training alone, over which gains are measured."""

ROUNDING = 1e-9
"""Tolerance in points when a lead is compared with its minimum, for the order of additions."""

Where = Literal["own", "all"]
"""Own test data of each client, or test data of all clients."""

METRICS: dict[Where, str] = {"own": "accuracy", "all": "global_accuracy"}

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """The results of one method in one setting."""

    setting: Setting
    method: str
    missing_reason: str | None  # why a run is missing
    scores: dict[Where, dict[int, Scores]]  # of the clients, by seed; old runs have no "all"
    bytes_per_client: list[float]  # sent in all rounds, for each seed

    def accuracy(self, where: Where) -> float | None:
        """Return the mean over seeds of the mean over clients; None without runs."""
        means = [np.nanmean(scores) for scores in self.scores[where].values()]
        return float(np.mean(means)) if means else None

    def lead(self, other: "Entry", where: Where) -> PairedLead | None:
        """Return the lead over another method in the same setting."""
        return lead_over(self.scores[where], other.scores[where])

    @property
    def sent(self) -> float | None:
        """Bytes up and down per client in all rounds, mean over seeds."""
        return float(np.mean(self.bytes_per_client)) if self.bytes_per_client else None


@dataclass(frozen=True)
class Comparison:
    """A claimed lead compared with the measured one, in one setting over one other method."""

    lead: Lead
    setting: Setting
    rival: str  # the other method
    measured: PairedLead | None
    missing_reason: str  # why `measured` is None

    @property
    def verdict(self) -> str:
        """The verdict: "yes", "no", or the reason why there is none."""
        if self.measured is None:
            return short_reason(self.missing_reason)
        mean, error = self.measured.mean, self.measured.error
        if self.lead.points is not None and 100 * mean < self.lead.points - ROUNDING:
            return "no"
        if self.lead.errors is None:
            return "yes"
        if error is None:
            return "too few runs"
        return "yes" if mean > self.lead.errors * error else "no"

    @property
    def margin(self) -> float:
        """The measured lead minus the claimed one; the smallest is the narrowest."""
        if self.measured is None:
            return np.inf
        required = []
        if self.lead.points is not None:
            required.append(self.lead.points / 100)
        if self.lead.errors is not None:
            required.append(self.lead.errors * (self.measured.error or 0.0))
        return self.measured.mean - max(required)


def entries(study: Study, outcome: Outcome) -> list[Entry]:
    """Return an entry for every method in every setting, also for those without a run."""
    all_entries: list[Entry] = []
    for setting in study.settings:
        in_setting = outcome.of_setting(setting.name)
        for method in study.methods_of(setting):
            runs = [(trial, run) for trial, run in in_setting.runs if trial.label == method]
            scores = {where: _scores(runs, metric) for where, metric in METRICS.items()}
            sent = [_sent(trial, run) for trial, run in runs]
            reason = in_setting.missing_reason(method)
            all_entries.append(Entry(setting, method, reason, scores, sent))
    return all_entries


def gains(all_entries: Sequence[Entry], where: Where) -> list[tuple[Entry, PairedLead | None]]:
    """Return every entry with its lead over training alone in the same setting."""
    alone = {entry.setting.name: entry for entry in all_entries if entry.method == ALONE}
    return [
        (
            entry,
            entry.lead(alone[entry.setting.name], where)
            if entry.method != ALONE and entry.setting.name in alone
            else None,
        )
        for entry in all_entries
    ]


def main_sheet(all_entries: Sequence[Entry], seeds: int) -> Sheet:
    """Return the table of accuracies, gains over training alone and bytes."""
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
    both = zip(gains(all_entries, "own"), gains(all_entries, "all"), strict=True)
    for (entry, own), (_, on_all) in both:
        runs = entry.scores["own"]
        rows.append(
            [
                entry.setting.title,
                entry.method,
                percent(entry.accuracy("own")) if runs else short_reason(entry.missing_reason),
                *_points(own),
                percent(entry.accuracy("all")),
                *_points(on_all),
                kb(entry.sent),
                f"{len(runs)} of {seeds}",
                _sample(own, on_all),
            ]
        )
    note = (
        f"Gains are in points over {ALONE} after the last round, not the best round: on the "
        "clients' own test data, and over all classes on the test data of all clients. Clients "
        "are paired within a seed. With several seeds the standard error is that of the seeds' "
        "means. With one seed it is that of its clients, which is too small, because they share a "
        "server. KB per client are sent up and down in all rounds; 1 KB = 1024 B. A dash means "
        "that there is nothing to compare with, or that an earlier version of fedgh did not "
        "measure it."
    )
    return Sheet("", "Gain over training alone", columns, rows, note)


def claim_sheets(study: Study, all_entries: Sequence[Entry]) -> list[Sheet]:
    """Return the tables of the claimed leads: one row per claim, and one per comparison."""
    compared = [(lead, list(_compare(lead, study, all_entries))) for lead in study.leads]
    if not compared:
        return []
    return [
        _claims(compared),
        _comparisons([one for _, comparisons in compared for one in comparisons]),
    ]


def _claims(compared: Iterable[tuple[Lead, Sequence[Comparison]]]) -> Sheet:
    columns = [
        Column("claim"),
        Column("holds?"),
        Column("comparisons that confirm it"),
        Column("without a result", 0),
        Column("narrowest lead", signed=True),
        Column("± s.e."),
        Column("where"),
    ]
    rows: list[list[Cell]] = []
    for lead, comparisons in compared:
        verdicts = [one.verdict for one in comparisons]
        narrowest = min(comparisons, key=lambda one: one.margin)
        where = f"{narrowest.setting.title}: {narrowest.rival}" if narrowest.measured else ""
        rows.append(
            [
                lead.text,
                _overall(verdicts),
                f"{verdicts.count('yes')} of {len(verdicts)}",
                sum(one.measured is None for one in comparisons),
                *_points(narrowest.measured),
                where,
            ]
        )
    note = (
        "A claim holds if all of its comparisons confirm it; those without a result confirm "
        "nothing. For claims over all classes, runs of an earlier version of fedgh count as not "
        "run, because it did not measure this. Two standard errors are a weak criterion with few "
        "seeds: a single method without any gain passes it once in 17 times with five seeds, and "
        "once in 11 times with three."
    )
    return Sheet("claims", "Claims", columns, rows, note)


def _comparisons(compared: Iterable[Comparison]) -> Sheet:
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
            one.setting.title,
            one.rival,
            one.verdict,
            *_points(one.measured),
            one.measured.over if one.measured else None,
        ]
        for one in compared
    ]
    return Sheet("claims-settings", "Claims in each setting", columns, rows)


def _overall(verdicts: Sequence[str]) -> str:
    """Return one verdict for all comparisons of a claim: the worst one with a result."""
    for verdict in ("no", "too few runs"):
        if verdict in verdicts:
            return verdict
    if "yes" not in verdicts:
        return min(verdicts)  # "no result" before "not run"
    return "yes" if set(verdicts) == {"yes"} else "yes, of those run"


def _compare(lead: Lead, study: Study, all_entries: Sequence[Entry]) -> Iterator[Comparison]:
    """Yield the comparisons of a claimed lead, in each of its settings."""
    for setting in filter(lead.applies_to, study.settings):
        by_method = {entry.method: entry for entry in all_entries if entry.setting == setting}
        ours = by_method[lead.of]
        for rival in lead.over or [method for method in by_method if method != lead.of]:
            theirs = by_method[rival]
            reasons = [each.missing_reason for each in (ours, theirs)]
            reason = next((each for each in reasons if each not in (None, NOT_RUN)), None)
            measured = ours.lead(theirs, lead.where)
            yield Comparison(lead, setting, rival, measured, reason or NOT_RUN)


def _scores(runs: Iterable[tuple[Trial, RunFolder]], metric: str) -> dict[int, Scores]:
    """Return by seed the score of each client after the last round, if it was measured."""
    by_seed: dict[int, Scores] = {}
    for trial, run in runs:
        with damage_as_run_error(run):
            per_client = run.records()[-1].per_client.get(metric)
            if per_client is None:
                continue
            scores = np.array(per_client, dtype=np.float64)
            if scores.shape != (trial.config.federation.clients,):
                raise ValueError(f"{metric}_per_client does not have a value for each client")
        if not np.isnan(scores).all():
            by_seed[trial.seed] = scores
    return by_seed


def _sent(trial: Trial, run: RunFolder) -> float:
    return float(run.records()[-1].bytes_total / trial.config.federation.clients)


def _points(lead: PairedLead | None) -> list[Cell]:
    """Return the cells of a lead and its standard error, in points."""
    return [None, None] if lead is None else [percent(lead.mean), percent(lead.error)]


def _sample(own: PairedLead | None, on_all: PairedLead | None) -> str | None:
    """Return the sample of the standard errors; both samples, if they differ."""
    if own and on_all and own.over != on_all.over:
        return f"{own.over}; all classes {on_all.over}"
    lead = own or on_all
    return lead.over if lead else None
