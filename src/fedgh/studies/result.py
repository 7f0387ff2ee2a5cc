"""The tables of a study of accuracy: paper, ours, difference, costs, and claims that hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgh.runs.folder import RunFolder
from fedgh.studies import statistics
from fedgh.studies.significance import SIGNIFICANT, range_test
from fedgh.studies.statistics import Row, client_accuracies
from fedgh.studies.study import PaperNumbers, Setting, Study
from fedgh.studies.sweep import NOT_RUN, Outcome
from fedgh.tables import Cell, Column, Sheet


@dataclass(frozen=True)
class Line:
    """The result of one method in one setting, with the published numbers."""

    setting: Setting
    method: str
    paper: PaperNumbers
    ours: Row | None
    seeds: int  # number of requested seeds
    missing_reason: str | None  # why a run is missing

    @property
    def accuracy(self) -> float | None:
        """Our accuracy in percent."""
        return None if self.ours is None else percent(self.ours.accuracy)

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the paper's, in points."""
        if self.accuracy is None or self.paper.accuracy is None:
            return None
        return self.accuracy - self.paper.accuracy


def lines(study: Study, outcome: Outcome, seeds: int) -> list[Line]:
    """Return a line for every method in every setting, also for those without a run."""
    all_lines: list[Line] = []
    for setting in study.settings:
        in_setting = outcome.of_setting(setting.name)
        ours = {row.label: row for row in statistics.rows(in_setting)}
        for method in study.methods_of(setting):
            published, row = setting.published.get(method, PaperNumbers()), ours.get(method)
            reason = in_setting.missing_reason(method)
            all_lines.append(Line(setting, method, published, row, seeds, reason))
    return all_lines


def main_sheet(all_lines: Iterable[Line]) -> Sheet:
    """Return the table of accuracies: paper, ours, difference, and all classes if known."""
    all_lines = list(all_lines)
    everywhere = [percent(line.ours.global_accuracy) if line.ours else None for line in all_lines]
    has_global = any(share is not None for share in everywhere)
    columns = [
        Column("setting"),
        Column("method"),
        Column("paper, %"),
        Column("ours, %"),
        Column("± std"),
        Column("difference", signed=True),
        *([Column("all classes, %")] if has_global else []),
        Column("seeds"),
    ]
    rows: list[list[Cell]] = [
        [
            line.setting.title,
            line.method,
            line.paper.accuracy,
            line.accuracy if line.ours else short_reason(line.missing_reason),
            percent(line.ours.accuracy_std) if line.ours else None,
            line.difference,
            *([share] if has_global else []),
            f"{line.ours.seeds if line.ours else 0} of {line.seeds}",
        ]
        for line, share in zip(all_lines, everywhere, strict=True)
    ]
    note = (
        "Ours is the mean accuracy over all clients, each on its own test data, after the last "
        "round, not the best round. Differences are in points."
    )
    if has_global:
        note += (
            " All classes: on test data of all clients, with the same number of samples per class;"
            " older runs did not measure it."
        )
    return Sheet("", "Accuracy", columns, rows, note)


def differences(study: Study, outcome: Outcome) -> Sheet:
    """Return the table of paired differences to the study's first method; no rows with one seed."""
    reference = study.methods[0] if study.methods else ""
    columns = [
        Column("setting"),
        Column("method"),
        Column("difference", signed=True),
        Column("from", signed=True),
        Column("to", signed=True),
        Column("seeds", 0),
        Column("p seeds, Holm", 4),
        Column("p clients, Holm", 4),
    ]
    rows: list[list[Cell]] = [
        [
            setting.title,
            row.label,
            *map(percent, (row.difference, row.difference_low, row.difference_high)),
            *(row.paired_seeds, row.p_seeds_holm, row.p_holm),
        ]
        for setting in study.settings
        for row in statistics.rows(outcome.of_setting(setting.name), reference=reference)
        if row.paired_seeds > 1
    ]
    note = (
        f"Differences to {reference} in points, over the seeds that both have, with a 95% interval "
        "over seeds (from, to). p: sign-flip tests over seeds, and over clients and seeds, each "
        "corrected for the number of methods in the setting. Clients of a seed are not "
        "independent, so their p tends to be too small; n seeds give at least 2 / 2^n."
    )
    return Sheet("differences", f"Differences to {reference}", columns, rows, note)


def communication(all_lines: Iterable[Line]) -> Sheet:
    """Return the table of bytes and rounds, for the methods with published ones."""
    columns = [
        Column("setting"),
        Column("method"),
        Column("KB/c/r, paper"),
        Column("as the paper computes it"),
        Column("sent"),
        Column("rounds to target, paper", 0),
        Column("ours", 1),
        Column("seeds that reached it"),
        Column("KB to target, paper"),
        Column("ours, sent"),
    ]
    rows: list[list[Cell]] = [
        [line.setting.title, line.method, *_costs(line)]
        for line in all_lines
        if line.paper.kb_per_client_round is not None
    ]
    note = (
        "KB/c/r: KB per client and round, up and down; 1 KB = 1024 B. Rounds and KB to the target "
        "are means over the seeds that reached it."
    )
    return Sheet("communication", "Communication", columns, rows, note)


def partitions(study: Study, outcome: Outcome) -> Sheet:
    """Return the table of the linear accuracy of each setting and seed; no rows if unknown."""
    known: dict[str, dict[int, float]] = {}
    for setting in study.settings:
        for trial, run in outcome.of_setting(setting.name).runs:
            if (accuracy := run.summary().linear_accuracy) is not None:
                title = study.full_title(setting)
                known.setdefault(title, {})[trial.seed] = 100 * accuracy
    seeds = sorted({seed for of_seed in known.values() for seed in of_seed})
    columns = [Column("setting"), *(Column(f"seed {seed}, %") for seed in seeds)]
    rows: list[list[Cell]] = [
        [title, *(of_seed.get(seed) for seed in seeds)] for title, of_seed in known.items()
    ]
    note = (
        "Linear accuracy: a linear classifier on fixed features, without a network, on each "
        "client's test samples and among its own classes. The lower it is, the harder are the "
        "classes that the seed gave to the clients."
    )
    return Sheet("partitions", "Partitions", columns, rows, note)


def verdicts(study: Study, outcome: Outcome) -> Sheet:
    """Return the table of claims: for each setting, whether our runs confirm them."""
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
        for setting in study.settings:
            in_setting = outcome.of_setting(setting.name)
            if claim.highest is not None:
                methods = study.methods_of(setting)
                others = claim.over or [each for each in methods if each != claim.highest]
                verdict = _judge_highest(claim.highest, others, in_setting)
            else:
                verdict = _judge_alike(claim.alike, in_setting)
            rows.append([claim.text, setting.title, *verdict])
    note = (
        f"A difference counts if p < {SIGNIFICANT}; otherwise it is within noise. Clients are "
        "paired, over the seeds that the compared methods share. Claims that a method is highest "
        "are tested against each other method with a sign-flip test. The method is ahead if all "
        "differences count. It is behind if one difference counts, corrected for the number of "
        "methods that have or may still have a result. Points and p are those of the deciding "
        "method. Claims that methods are alike are tested by the spread of their means, with "
        "methods permuted within each client. The p-values are not corrected for the number of "
        "settings, and the clients of a run are not independent, because they share a server."
    )
    return Sheet("claims", "Claims", columns, rows, note)


def _judge_highest(winner: str, rivals: Sequence[str], outcome: Outcome) -> list[Cell]:
    if all(trial.label != winner for trial, _ in outcome.runs):
        return [short_reason(outcome.missing_reason(winner)), "", None, None]
    compared = [
        (row.difference, row.p_value, row.label)
        for row in statistics.rows(outcome, reference=winner)
        if row.label in rivals and row.difference is not None and row.p_value is not None
    ]
    if not compared:
        return ["not run", "no other method has a seed in common", None, None]
    absent = [rival for rival in rivals if rival not in {label for _, _, label in compared}]
    ahead = [row for row in compared if row[0] >= 0]
    if ahead:
        lead, p, rival = min(ahead, key=lambda row: (row[1], -row[0]))
        # Runs that are still missing count too; otherwise each new run would change the verdict.
        possible = len(compared) + sum(outcome.missing_reason(each) == NOT_RUN for each in absent)
        p = min(1.0, possible * p)
        verdict = "no" if p < SIGNIFICANT else "not ahead, within noise"
        because = f"{rival} is ahead"
    else:
        lead, p, rival = max(compared, key=lambda row: (row[1], row[0]))
        verdict = "yes" if p < SIGNIFICANT else "ahead, within noise"
        because = f"least certain against {rival}"
    if absent:
        because += f"; {len(absent)} of {len(rivals)} other methods have no result"
        verdict = "yes, of those run" if verdict == "yes" else verdict
    return [verdict, because, -100 * lead, p]


def _judge_alike(alike: Sequence[str], outcome: Outcome) -> list[Cell]:
    by_label: dict[str, dict[int, RunFolder]] = {}
    for trial, run in outcome.runs:
        if trial.label in alike:
            by_label.setdefault(trial.label, {})[trial.seed] = run
    if len(by_label) < 2:
        missing = [label for label in alike if label not in by_label]
        reasons = {short_reason(outcome.missing_reason(label)) for label in missing}
        return [min(reasons), "", None, None]  # "no result" before "not run"
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
        return ["not run", "they have no evaluated client in common", None, None]
    means = dict(zip(by_label, scores.mean(axis=1), strict=True))
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    p = range_test(scores)
    because = f"lowest {low}, highest {high}"
    if len(by_label) < len(alike):
        because += f"; {len(alike) - len(by_label)} of {len(alike)} have no result"
    verdict = "no" if p < SIGNIFICANT else "within noise"
    return [verdict, because, 100 * float(means[high] - means[low]), p]


def _costs(line: Line) -> list[Cell]:
    paper, ours = line.paper, line.ours
    if ours is None:
        cells: list[Cell] = [short_reason(line.missing_reason)] * 5
    else:
        cells = [
            kb(ours.paper_bytes_per_client_round),
            kb(ours.bytes_per_client_round),
            ours.rounds_to_target,
            f"{ours.reached} of {ours.seeds}",
            kb(ours.bytes_to_target),
        ]
    return [
        paper.kb_per_client_round,
        *cells[:2],
        paper.rounds_to_target,
        *cells[2:4],
        paper.kb_to_target,
        cells[4],
    ]


def short_reason(reason: str | None) -> str:
    """Return the text of a table cell without a number; the full reason is below the table."""
    return "not run" if reason in (None, NOT_RUN) else "no result"


def percent(share: float | None) -> float | None:
    """Return a share in percent, or a difference of shares in points."""
    return None if share is None else 100 * share


def kb(count: float | None) -> float | None:
    """Return a number of bytes in KB (1024 bytes)."""
    return None if count is None else count / 1024
