"""What the runs of a study say: the paper's number, ours, the difference, and what holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgh.runs.folder import RunFolder
from fedgh.studies import statistics
from fedgh.studies.statistics import Row, client_accuracies
from fedgh.studies.study import Case, Published, Study
from fedgh.studies.sweep import NOT_RUN, Outcome
from fedgh.tables import Cell, Column, Sheet

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Line:
    """One method in one setting."""

    case: Case
    method: str
    paper: Published
    ours: Row | None
    seeds: int  # that were asked for
    why_not: str | None  # there are no numbers of ours

    @property
    def accuracy(self) -> float | None:
        """Ours, in percent."""
        return None if self.ours is None else percent(self.ours.accuracy)

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the paper's, in points."""
        if self.accuracy is None or self.paper.accuracy is None:
            return None
        return self.accuracy - self.paper.accuracy


def lines(study: Study, outcome: Outcome, seeds: int) -> list[Line]:
    """Every method in every setting, whether it was run or not."""
    found: list[Line] = []
    for case in study.cases:
        ours = {row.label: row for row in statistics.rows(outcome.at(case.name))}
        for method in study.methods_of(case):
            published, row = case.published.get(method, Published()), ours.get(method)
            why_not = outcome.at(case.name).why_not(method)
            found.append(Line(case, method, published, row, seeds, why_not))
    return found


def main_sheet(found: Iterable[Line]) -> Sheet:
    """Paper, ours, difference."""
    columns = [
        Column("setting"),
        Column("method"),
        Column("paper, %"),
        Column("ours, %"),
        Column("± std"),
        Column("difference", signed=True),
        Column("seeds"),
    ]
    rows: list[list[Cell]] = [
        [
            line.case.title,
            line.method,
            line.paper.accuracy,
            line.accuracy if line.ours else short(line.why_not),
            percent(line.ours.accuracy_std) if line.ours else None,
            line.difference,
            f"{line.ours.seeds if line.ours else 0} of {line.seeds}",
        ]
        for line in found
    ]
    note = (
        "Ours is the mean accuracy over all clients, each on its own test data, after the last "
        "round; never the best round. Differences in points."
    )
    return Sheet("", "Accuracy", columns, rows, note)


def communication(found: Iterable[Line]) -> Sheet:
    """Bytes and rounds, for the methods of which the paper prints them."""
    columns = [
        Column("setting"),
        Column("method"),
        Column("KB/c/r, paper"),
        Column("reckoned alike"),
        Column("really sent"),
        Column("rounds to target, paper", 0),
        Column("ours", 1),
        Column("seeds that reached it"),
        Column("KB to target, paper"),
        Column("ours, sent"),
    ]
    rows: list[list[Cell]] = [
        [line.case.title, line.method, *_costs(line)]
        for line in found
        if line.paper.kb_per_client_round is not None
    ]
    note = "KB per client and round, up and down; 1 KB = 1024 B. Means over seeds that reached it."
    return Sheet("communication", "What it costs to send", columns, rows, note)


def verdicts(study: Study, outcome: Outcome) -> Sheet:
    """For every claim and setting what our runs say."""
    columns = [
        Column("claim"),
        Column("setting"),
        Column("holds?"),
        Column("because"),
        Column("points", signed=True),
        Column("p", 3),
    ]
    rows: list[list[Cell]] = []
    for claim in study.claims:
        for case in study.cases:
            here = outcome.at(case.name)
            if claim.highest is not None:
                others = claim.over or [m for m in study.methods_of(case) if m != claim.highest]
                judged = _judge_highest(claim.highest, others, here)
            else:
                judged = _judge_alike(claim.alike, here)
            rows.append([claim.text, case.title, *judged])
    note = (
        f"A difference counts when p < {SIGNIFICANT}; otherwise it is within noise. Clients are "
        "paired, over the seeds that the compared methods share. Highest: sign-flip tests against "
        "each rival; to be ahead all of them must count, to be behind one, corrected for how many "
        "have or may still have a result. Points and p are of the rival that decides. Alike: the "
        "spread of the means, with methods changing places within each client. Not corrected for "
        "the number of settings, and clients of one run share a server: a hint."
    )
    return Sheet("claims", "Does it hold?", columns, rows, note)


def _judge_highest(winner: str, rivals: Sequence[str], outcome: Outcome) -> list[Cell]:
    if all(trial.label != winner for trial, _ in outcome.runs):
        return [short(outcome.why_not(winner)), "", None, None]
    compared = [
        (row.difference, row.p_value, row.label)
        for row in statistics.rows(outcome, reference=winner)
        if row.label in rivals and row.difference is not None and row.p_value is not None
    ]
    if not compared:
        return ["not run", "no rival has a seed in common", None, None]
    absent = [rival for rival in rivals if rival not in {label for _, _, label in compared}]
    ahead = [one for one in compared if one[0] >= 0]
    if ahead:
        lead, p, who = min(ahead, key=lambda one: (one[1], -one[0]))
        # Those that are still to be run count, too, or each that is would change the verdict.
        possible = len(compared) + sum(outcome.why_not(rival) == NOT_RUN for rival in absent)
        p = min(1.0, possible * p)
        word = "no" if p < SIGNIFICANT else "not ahead, within noise"
        because = f"{who} is ahead"
    else:
        lead, p, who = max(compared, key=lambda one: (one[1], one[0]))
        word = "yes" if p < SIGNIFICANT else "ahead, within noise"
        because = f"least surely of {who}"
    if absent:
        because += f"; {len(absent)} of {len(rivals)} rivals have no result"
        word = "yes, of those run" if word == "yes" else word
    return [word, because, -100 * lead, p]


def _judge_alike(alike: Sequence[str], outcome: Outcome) -> list[Cell]:
    by_label: dict[str, dict[int, RunFolder]] = {}
    for trial, run in outcome.runs:
        if trial.label in alike:
            by_label.setdefault(trial.label, {})[trial.seed] = run
    if len(by_label) < 2:
        words = {short(outcome.why_not(label)) for label in alike if label not in by_label}
        return [min(words), "", None, None]  # "no result" before "not run"
    shared = set.intersection(*({*runs} for runs in by_label.values()))
    if not shared:
        return ["not run", "they have no seed in common", None, None]
    scores = np.array(
        [
            np.concatenate([client_accuracies(runs[seed], last=1) for seed in sorted(shared)])
            for runs in by_label.values()
        ]
    )
    scores = scores[:, ~np.isnan(scores).any(axis=0)]
    if not scores.size:
        return ["not run", "they have no client in common that was judged", None, None]
    means = dict(zip(by_label, scores.mean(axis=1), strict=True))
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    p = statistics.range_test(scores)
    because = f"lowest {low}, highest {high}"
    if len(by_label) < len(alike):
        because += f"; {len(alike) - len(by_label)} of {len(alike)} have no result"
    word = "no" if p < SIGNIFICANT else "within noise"
    return [word, because, 100 * float(means[high] - means[low]), p]


def _costs(line: Line) -> list[Cell]:
    paper, ours = line.paper, line.ours
    if ours is None:
        mine: list[Cell] = [short(line.why_not)] * 5
    else:
        mine = [
            kb(ours.paper_bytes_per_client_round),
            kb(ours.bytes_per_client_round),
            ours.rounds_to_target,
            f"{ours.reached} of {ours.seeds}",
            kb(ours.bytes_to_target),
        ]
    return [
        paper.kb_per_client_round,
        *mine[:2],
        paper.rounds_to_target,
        *mine[2:4],
        paper.kb_to_target,
        mine[4],
    ]


def short(reason: str | None) -> str:
    """A cell's worth of a reason; the whole stands below the table."""
    return "not run" if reason in (None, NOT_RUN) else "no result"


def percent(share: float | None) -> float | None:
    """A share in percent, or a difference of shares in points."""
    return None if share is None else 100 * share


def kb(count: float | None) -> float | None:
    """A number of bytes in KB."""
    return None if count is None else count / 1024
