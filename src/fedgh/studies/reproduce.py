"""Run a study, or what is left of it, and see what its runs say together."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgh.choices import BudgetName
from fedgh.core.records import Summary
from fedgh.errors import ConfigError
from fedgh.studies import measured, pays
from fedgh.studies.plan import changes, narrowed, plan
from fedgh.studies.result import Line, communication, lines, main_sheet, verdicts
from fedgh.studies.study import Study, budgets, study
from fedgh.studies.sweep import NOT_RUN, Outcome, Trial, Watch, found, run_trials
from fedgh.tables import Sheet


@dataclass(frozen=True)
class Reproduction:
    """Which study, and how much of it."""

    name: str
    budget: BudgetName = "quick"
    seeds: Sequence[int] = (0,)
    overrides: Sequence[str] = ()
    data_dir: Path | None = None

    @property
    def study(self) -> Study:
        """The whole study."""
        return study(self.name)

    def trials(self, only: Sequence[str] = ()) -> list[Trial]:
        """The runs it takes, or those of the settings and methods that `only` names."""
        part = narrowed(self.study, only)
        if not part.cases and self.overrides:
            raise ConfigError(f"{self.name} trains nothing, so that there is nothing to --set")
        return plan(part, self.budget, self.seeds, self.overrides, self.data_dir)

    def command(self) -> str:
        """What to type for the same again."""
        words = ["fedgh", "reproduce", self.name, "--budget", self.budget]
        words += ["--seeds", ",".join(map(str, self.seeds))]
        words += [word for override in self.overrides for word in ("--set", override)]
        return shlex.join(words)


@dataclass(frozen=True)
class Result:
    """A study with the runs that are there."""

    request: Reproduction
    outcome: Outcome
    lines: list[Line]
    sheets: list[Sheet]
    changes: list[str]

    @property
    def study(self) -> Study:
        """What was asked."""
        return self.request.study

    @property
    def reasons(self) -> dict[str, str]:
        """Why some have no result although they were tried."""
        return {run: why for run, why in self.outcome.missing.items() if why != NOT_RUN}

    @property
    def not_run(self) -> list[str]:
        """What was not run, the seeds of each together."""
        seeds: dict[str, list[str]] = {}
        for run, why in self.outcome.missing.items():
            if why == NOT_RUN:
                name, _, seed = run.rpartition(", seed ")
                seeds.setdefault(name, []).append(seed)
        return [
            f"{name}, seed{'s' if len(each) > 1 else ''} {', '.join(each)}"
            for name, each in seeds.items()
        ]

    def provenance(self) -> list[str]:
        """Which command made this, with what budget, where and when."""
        facts = [self.study.source, f"command: {self.request.command()}"]
        facts += self.conditions()
        summaries = [run.summary() for _, run in self.outcome.runs]
        if summaries:
            dates = sorted(summary.finished[:10] for summary in summaries)
            when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
            minutes = sum(summary.seconds for summary in summaries) / 60
            facts.append(f"runs: {len(summaries)}, {minutes:.0f} minutes in all, {when}")
            facts.append("machine: " + "; ".join(sorted({_machine(each) for each in summaries})))
        return facts

    def conditions(self) -> list[str]:
        """The budget, and what it changes."""
        if not self.study.cases:
            return []
        facts = [f"budget {self.request.budget}: {budgets()[self.request.budget].about}"]
        if self.changes:
            facts.append("different from --budget paper: " + "; ".join(self.changes))
        return facts


def run_study(
    request: Reproduction,
    out: Path,
    reasons: dict[str, str],
    only: Sequence[str] = (),
    watch: Watch | None = None,
) -> None:
    """Run what is not there yet; why some have no result is put into `reasons` as it is found."""
    trials = request.trials(only)
    if trials:
        run_trials(trials, out / request.budget, watch, skip_impossible=True, missing=reasons)


def collect(request: Reproduction, out: Path, reasons: dict[str, str]) -> Result:
    """What the runs that are there say; `reasons` tells why others have no result."""
    wanted, trials = request.study, request.trials()
    there = found(trials, out / request.budget)
    names = {trial.run: trial.name for trial in trials}
    missing = {
        run: reasons.get(run) or reasons.get(names[run], why) for run, why in there.missing.items()
    }
    outcome = Outcome(there.runs, missing)
    sheets: list[Sheet]
    found_lines: list[Line] = []
    if wanted.kind == "models":
        sheets = [measured.structures(wanted)]
    elif wanted.kind == "convergence":
        sheets = [measured.convergence_sheet(outcome)]
    elif wanted.kind == "cost":
        sheets = [measured.cost_sheet(outcome)]
    elif wanted.kind == "poisoning":
        sheets = [measured.poisoning_sheet(wanted, outcome)]
    elif wanted.kind == "pays":
        entries = pays.entries(wanted, outcome)
        sheets = [pays.main_sheet(entries, len(request.seeds))]
        sheets += pays.claim_sheets(wanted, entries)
    else:
        found_lines = lines(wanted, outcome, len(request.seeds))
        costs = communication(found_lines)
        sheets = [main_sheet(found_lines)]
        sheets += [verdicts(wanted, outcome)] if wanted.claims else []
        sheets += [costs] if costs.rows else []
    differences = changes(wanted, request.budget, request.overrides)
    return Result(request, outcome, found_lines, sheets, differences)


def _machine(summary: Summary) -> str:
    machine, versions = summary.machine, summary.versions
    return (
        f"{machine['cores']} cores of {machine['processor']}, torch {versions['torch']}, "
        f"fedgh {versions['fedgh']}"
    )
