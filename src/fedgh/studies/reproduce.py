"""Run the missing runs of a study, and collect its tables from the finished runs."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgh.choices import BudgetName
from fedgh.core.records import Summary
from fedgh.errors import ConfigError
from fedgh.studies import as_published, measured, pays
from fedgh.studies.plan import changes, plan, select
from fedgh.studies.result import (
    Line,
    communication,
    differences,
    lines,
    main_sheet,
    partitions,
    verdicts,
)
from fedgh.studies.study import Study, budgets, study
from fedgh.studies.sweep import (
    NOT_RUN,
    Outcome,
    Trial,
    Watch,
    collect_runs,
    join_seeds,
    run_trials,
)
from fedgh.tables import Sheet


@dataclass(frozen=True)
class Reproduction:
    """A request to run a study with a budget, seeds and overrides."""

    name: str
    budget: BudgetName = "quick"
    seeds: Sequence[int] = ()  # none: those of the study
    overrides: Sequence[str] = ()
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(self.seeds) or tuple(self.study.seeds))

    @property
    def study(self) -> Study:
        """The whole study."""
        return study(self.name)

    def trials(self, only: Sequence[str] = ()) -> list[Trial]:
        """Return the trials of the study, or those of settings and methods that `only` names."""
        part = select(self.study, only)
        if not part.settings and self.overrides:
            raise ConfigError(f"{self.name} trains nothing; leave out --set")
        return plan(part, self.budget, self.seeds, self.overrides, self.data_dir)

    def command(self) -> str:
        """Return the command line that repeats this request."""
        arguments = ["fedgh", "reproduce", self.name, "--budget", self.budget]
        arguments += ["--seeds", ",".join(map(str, self.seeds))]
        arguments += [part for override in self.overrides for part in ("--set", override)]
        return shlex.join(arguments)


@dataclass(frozen=True)
class Result:
    """The tables of a study from its finished runs."""

    request: Reproduction
    outcome: Outcome
    lines: list[Line]
    sheets: list[Sheet]
    changes: list[str]

    @property
    def study(self) -> Study:
        """The whole study."""
        return self.request.study

    @property
    def reasons(self) -> dict[str, str]:
        """Runs that were tried and have no result, each with the reason."""
        missing = self.outcome.missing.items()
        return {run: reason for run, reason in missing if reason != NOT_RUN}

    @property
    def not_run(self) -> list[str]:
        """Runs that were not tried, one text for all seeds of a method in a setting."""
        missing = self.outcome.missing.items()
        return [*join_seeds({run: reason for run, reason in missing if reason == NOT_RUN})]

    def provenance(self) -> list[str]:
        """Return facts about the origin of the result: command, budget, dates and machine."""
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
        """Return facts about the budget and the settings that it changes."""
        if not self.study.settings:
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
    jobs: int = 1,
) -> None:
    """Run the missing runs of a study; add the reasons of runs without a result to `reasons`."""
    trials = request.trials(only)
    if trials:
        folder = out / request.budget
        run_trials(trials, folder, watch, skip_impossible=True, missing=reasons, jobs=jobs)


def collect(request: Reproduction, out: Path, reasons: dict[str, str]) -> Result:
    """Return the tables of the finished runs; `reasons` explains runs without a result."""
    study, trials = request.study, request.trials()
    outcome = collect_runs(trials, out / request.budget, reasons)
    sheets: list[Sheet]
    all_lines: list[Line] = []
    if study.kind == "models":
        sheets = [measured.structures(study)]
    elif study.kind == "convergence":
        sheets = [measured.convergence_sheet(outcome)]
    elif study.kind == "cost":
        sheets = [measured.cost_sheet(outcome)]
    elif study.kind == "poisoning":
        sheets = [measured.poisoning_sheet(study, outcome)]
    elif study.kind == "pays":
        entries = pays.entries(study, outcome)
        sheets = [pays.main_sheet(entries, len(request.seeds))]
        sheets += pays.claim_sheets(study, entries)
    elif study.kind == "as-published":
        sheets = as_published.sheets(study, outcome)
    else:
        all_lines = lines(study, outcome, len(request.seeds))
        gains, costs = differences(study, outcome), communication(all_lines)
        sheets = [main_sheet(all_lines)]
        sheets += [gains] if gains.rows else []
        sheets += [verdicts(study, outcome)] if study.claims else []
        sheets += [costs] if costs.rows else []
    drawn = partitions(study, outcome)
    sheets += [drawn] if drawn.rows else []
    changed = changes(study, request.budget, request.overrides)
    return Result(request, outcome, all_lines, sheets, changed)


def _machine(summary: Summary) -> str:
    machine, versions = summary.machine, summary.versions
    return (
        f"{machine['cores']} cores of {machine['processor']}, torch {versions['torch']}, "
        f"fedgh {versions['fedgh']}"
    )
