"""What the runs of a study say: the paper's number, ours, the difference, and what holds."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedgh import statistics
from fedgh.paper.sheets import Cell, Column, Sheet
from fedgh.paper.study import Case, Claim, Published, Study
from fedgh.statistics import Row
from fedgh.sweep import NOT_RUN, Outcome

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Line:
    """One method in one setting."""

    case: Case
    method: str
    paper: Published
    ours: Row | None
    why_not: str | None  # there are no numbers of ours

    @property
    def accuracy(self) -> float | None:
        """Ours, in percent."""
        return None if self.ours is None else _percent(self.ours.accuracy)

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the paper's, in points."""
        if self.accuracy is None or self.paper.accuracy is None:
            return None
        return self.accuracy - self.paper.accuracy


def lines(study: Study, outcome: Outcome) -> list[Line]:
    """Every method in every setting, whether it was run or not."""
    found: list[Line] = []
    for case in study.cases:
        ours = {row.label: row for row in statistics.rows(outcome.at(case.name))}
        for method in study.methods:
            why = None if method in ours else outcome.missing.get(f"{case.name}: {method}")
            published = case.published.get(method, Published())
            found.append(Line(case, method, published, ours.get(method), why))
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
        Column("seeds", 0),
    ]
    rows: list[list[Cell]] = [
        [
            line.case.title,
            line.method,
            line.paper.accuracy,
            line.accuracy if line.ours else _short(line.why_not),
            _percent(line.ours.accuracy_std) if line.ours else None,
            line.difference,
            float(line.ours.seeds) if line.ours else 0.0,
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
        Column("KB to target, paper", 1),
        Column("ours, sent", 1),
    ]
    rows: list[list[Cell]] = [
        [line.case.title, line.method, *_costs(line)]
        for line in found
        if line.paper.kb_per_client_round is not None
    ]
    note = "KB per client and round, up and down; 1 KB = 1024 B. A dash: the target is not reached."
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
    rows = [
        [claim.text, case.title, *_judge(claim, outcome.at(case.name))]
        for claim in study.claims
        for case in study.cases
    ]
    note = (
        f"p: sign-flip test paired over clients and seeds, not corrected for many comparisons; "
        f"a difference counts when p < {SIGNIFICANT}. Clients of one run share a server, so that "
        "even then it is a hint."
    )
    return Sheet("claims", "Does it hold?", columns, rows, note)


def _judge(claim: Claim, outcome: Outcome) -> list[Cell]:
    if claim.highest is not None:
        return _judge_highest(claim.highest, outcome)
    return _judge_alike(claim.alike, outcome)


def _judge_highest(winner: str, outcome: Outcome) -> list[Cell]:
    table = [row for row in statistics.rows(outcome, reference=winner) if row.label != winner]
    if not table or all(trial.label != winner for trial, _ in outcome.runs):
        return ["not run", "", None, None]
    best = max(table, key=lambda row: row.accuracy or 0.0)
    ahead = -(best.difference or 0.0)
    sure = best.p_value is not None and best.p_value < SIGNIFICANT
    if ahead > 0:
        word = "yes" if sure else "ahead, within noise"
    else:
        word = "no" if sure else "not ahead, within noise"
    return [word, f"the best other is {best.label}", 100 * ahead, best.p_value]


def _judge_alike(alike: list[str], outcome: Outcome) -> list[Cell]:
    table = [row for row in statistics.rows(outcome) if row.label in alike]
    if len(table) < 2:
        return ["not run", "", None, None]
    table.sort(key=lambda row: row.accuracy or 0.0)
    low, high = table[0].label, table[-1].label
    test = next(row for row in statistics.rows(outcome, reference=low) if row.label == high)
    sure = test.p_value is not None and test.p_value < SIGNIFICANT
    because = f"lowest {low}, highest {high}"
    if len(table) < len(alike):
        because += f"; {len(alike) - len(table)} of {len(alike)} not run"
    apart = None if test.difference is None else 100 * test.difference
    return ["no" if sure else "within noise", because, apart, test.p_value]


def _costs(line: Line) -> list[Cell]:
    paper, ours = line.paper, line.ours
    published = (paper.kb_per_client_round, paper.rounds_to_target, paper.kb_to_target)
    if ours is None:
        reckoned = sent = rounds = kb = None
    else:
        reckoned = _kb(ours.paper_bytes_per_client_round)
        sent = _kb(ours.bytes_per_client_round)
        rounds = ours.rounds_to_target
        kb = _kb(ours.bytes_to_target)
    return [published[0], reckoned, sent, published[1], rounds, published[2], kb]


def _short(reason: str | None) -> str:
    """A cell's worth of a reason; the whole stands below the table."""
    return "not run" if reason in (None, NOT_RUN) else "no result"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _kb(count: float | None) -> float | None:
    return None if count is None else count / 1024
