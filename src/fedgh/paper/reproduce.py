"""Run a study, or what is left of it, and see what its runs say together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgh.paper import measured
from fedgh.paper.plan import changes, narrowed, plan
from fedgh.paper.result import Line, communication, lines, main_sheet, verdicts
from fedgh.paper.sheets import Sheet
from fedgh.paper.study import BudgetName, Study, budgets, study
from fedgh.sweep import NOT_RUN, Outcome, Trial, Watch, found, run_trials


@dataclass(frozen=True)
class Request:
    """Which study, and how much of it."""

    name: str
    budget: BudgetName = "quick"
    seeds: Sequence[int] = (0,)
    only: Sequence[str] = ()
    overrides: Sequence[str] = ()
    data_dir: Path | None = None

    @property
    def study(self) -> Study:
        """The study, or the part of it that is wanted."""
        return narrowed(study(self.name), self.only)

    def trials(self) -> list[Trial]:
        """The runs it takes."""
        if not self.study.cases:
            return []
        return plan(self.study, self.budget, self.seeds, self.overrides, self.data_dir)

    def command(self) -> str:
        """What to type for the same again."""
        words = [f"fedgh reproduce {self.name} --budget {self.budget}"]
        words.append("--seeds " + ",".join(map(str, self.seeds)))
        if self.only:
            words.append("--only " + ",".join(self.only))
        words += [f"--set {override}" for override in self.overrides]
        return " ".join(words)


@dataclass(frozen=True)
class Result:
    """A study with the runs that are there."""

    request: Request
    study: Study
    outcome: Outcome
    lines: list[Line]
    sheets: list[Sheet]
    changes: list[str]

    @property
    def about_budget(self) -> str:
        """What the budget is, in a sentence."""
        return budgets()[self.request.budget].about

    @property
    def reasons(self) -> dict[str, str]:
        """Why some have no result although they were tried."""
        return {name: why for name, why in self.outcome.missing.items() if why != NOT_RUN}

    @property
    def not_run(self) -> list[str]:
        """What was not run."""
        return [name for name, why in self.outcome.missing.items() if why == NOT_RUN]


def run_study(request: Request, out: Path, watch: Watch | None = None) -> dict[str, str]:
    """Run what is not there yet; returns why some runs have no result."""
    trials = request.trials()
    if not trials:
        return {}
    return run_trials(trials, out / request.budget, watch, skip_impossible=True).missing


def collect(request: Request, out: Path, reasons: dict[str, str]) -> Result:
    """What the runs that are there say; `reasons` tells why others have no result."""
    wanted = request.study
    there = found(request.trials(), out / request.budget)
    missing = {name: reasons.get(name, why) for name, why in there.missing.items()}
    outcome = Outcome(there.runs, missing)
    sheets: list[Sheet]
    found_lines: list[Line] = []
    if wanted.kind == "models":
        sheets = [measured.structures(wanted)]
    elif wanted.kind == "convergence":
        sheets = [measured.convergence_sheet(outcome)]
    elif wanted.kind == "cost":
        sheets = [measured.cost_sheet(outcome)]
    else:
        found_lines = lines(wanted, outcome)
        sheets = [
            main_sheet(found_lines),
            verdicts(wanted, outcome),
            communication(found_lines),
        ]
    differences = changes(wanted, request.budget, request.overrides)
    full = [sheets[0], *(sheet for sheet in sheets[1:] if sheet.rows)]
    return Result(request, wanted, outcome, found_lines, full, differences)
