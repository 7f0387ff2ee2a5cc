"""Many runs: `fedgh compare`, `advise`, `tune`, `reproduce`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.choices import BudgetName
from fedgh.cli.helpers import (
    overrides_of,
    repeatable,
    say_missing,
    watch_runs,
    whole_numbers,
)
from fedgh.cli.options import (
    DataDir,
    Engine,
    Name,
    Quiet,
    Rounds,
    Seeds,
    Set,
    SweepOut,
    Workers,
)
from fedgh.defaults import SEEDS
from fedgh.errors import ConfigError, RunError

USUAL_SEEDS = ",".join(map(str, SEEDS))


def compare(
    experiment: Name = "demo",
    methods: Annotated[
        str, typer.Option(help="all, or names: fedgh,fedgh:server_lr=0,standalone.")
    ] = "all",
    seeds: Seeds = USUAL_SEEDS,
    rounds: Rounds = None,
    reference: Annotated[
        str, typer.Option(help="What the others are compared with; else the first method.")
    ] = "fedgh",
    last: Annotated[
        int, typer.Option(min=1, help="The result is the mean of this many last evaluations.")
    ] = 1,
    set_: Set = None,
    out: SweepOut = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same clients, data, initial weights and batches."""
    from fedgh.report.terminal import comparison, print_whole, say
    from fedgh.studies import statistics
    from fedgh.studies.sweep import plan_comparison, run_trials

    console = Console(quiet=quiet)
    overrides = overrides_of(set_, engine, workers, rounds)
    trials = plan_comparison(experiment, methods, whole_numbers(seeds), overrides, data_dir)
    if reference not in {trial.label for trial in trials}:
        reference = trials[0].label
    folder = out or Path("runs") / f"compare-{Path(experiment).stem}"
    with repeatable():
        outcome = run_trials(trials, folder, watch_runs(console), skip_impossible=methods == "all")
    table = statistics.rows(outcome, last, reference)
    target = trials[0].config.federation.target
    numbers = whole_numbers(seeds)
    about = {"reference": reference, "last": last, "target": target, "seeds": numbers}
    statistics.write(table, outcome, folder / "comparison", about)
    print_whole(console, comparison(table, outcome.missing, target))
    say_missing(console, outcome.missing)
    if not table:
        label, reason = next(iter(outcome.missing.items()))
        raise RunError(f"there is nothing to compare; {label}: {reason}")
    say(
        console,
        f"accuracy  mean ± std over {len(numbers)} seed(s); of the clients, each on its own "
        f"test data, in the last {last} evaluated round(s)\n"
        "global    the same on test data of all clients, every class alike; - where it was not "
        "measured\n"
        f"diff, p   to {reference}, in points; sign-flip test paired over clients and seeds, not "
        "corrected for the number of methods\n"
        "B/c/r     sent up and down per client and round; beside it the paper's own reckoning\n"
        f"written to {folder / 'comparison'}.csv and .json",
    )


def advise(
    experiment: Name = "demo",
    methods: Annotated[
        str | None,
        typer.Option(help="What to rehearse: fedgh,fedproto or all; else the usual ones."),
    ] = None,
    seeds: Seeds = USUAL_SEEDS,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Of the rehearsal; else five, or all if fewer.")
    ] = None,
    set_: Set = None,
    out: SweepOut = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Rehearse a federation on your data: what would joining gain, and for how many bytes?"""
    from fedgh.report.advised import table, text
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.studies.advice import advise

    console = Console(quiet=quiet)
    with repeatable():
        found = advise(
            experiment,
            methods=methods,
            rounds=rounds,
            seeds=whole_numbers(seeds),
            out=out,
            overrides=overrides_of(set_, engine, workers),
            data_dir=data_dir,
            watch=watch_runs(console),
        )
    print_whole(console, sheet(table(found)))
    say_missing(console, found.missing)
    say(console, text(found))


def tune(
    experiment: Name = "demo",
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY=A,B", help="Values to try; may be repeated."),
    ] = None,
    seeds: Seeds = "0",
    rounds: Rounds = None,
    set_: Set = None,
    out: SweepOut = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Search a grid of settings, judged on the validation split; test data choose nothing."""
    from fedgh.files import write_atomic
    from fedgh.formats import percent
    from fedgh.report.terminal import print_whole, say, search
    from fedgh.studies import statistics
    from fedgh.studies.sweep import plan_search, run_trials

    console = Console(quiet=quiet)
    if not grid:
        raise ConfigError("nothing to search: give at least one --grid section.key=value,value")
    overrides = overrides_of(set_, engine, workers, rounds)
    trials = plan_search(experiment, grid, whole_numbers(seeds), overrides, data_dir)
    folder = out or Path("runs") / f"tune-{Path(experiment).stem}"
    with repeatable():
        outcome = run_trials(trials, folder, watch_runs(console))
    table = statistics.rows(outcome)
    table.sort(key=lambda row: -1 if row.validation_accuracy is None else -row.validation_accuracy)
    statistics.write(
        table, outcome, folder / "search", {"grid": grid, "seeds": whole_numbers(seeds)}
    )
    print_whole(console, search(table))
    say_missing(console, outcome.missing)
    if not table:
        raise RunError("no point of the grid could be trained")
    best = next(trial for trial, _ in outcome.runs if trial.label == table[0].label)
    write_atomic(folder / "best.toml", best.config.to_toml().encode())
    say(
        console,
        f"best: {best.label}; its accuracy on test data is {percent(table[0].accuracy)}\n"
        f"run it with: fedgh run {folder / 'best.toml'}",
    )


def reproduce(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="One of `fedgh list studies`, e.g. table-hetero.")
    ],
    budget: Annotated[
        BudgetName, typer.Option(help="smoke: seconds; quick: two cores; paper: a graphics card.")
    ] = "quick",
    seeds: Seeds = "0",
    only: Annotated[
        str,
        typer.Option(
            help="Run only these settings and methods, or patterns of them: cifar10-*,fedgh."
        ),
    ] = "",
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Only look at the runs that are there.")
    ] = False,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The folder for runs and tables.")] = Path(
        "runs/reproduce"
    ),
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Run a table or figure of the paper and put its numbers beside ours.

    What is there already is not run again, and what was stopped goes on.
    """
    from fedgh.report import document
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.studies.reproduce import Reproduction, collect, run_study

    console = Console(quiet=quiet)
    words = [word.strip() for word in only.split(",") if word.strip()]
    overrides = overrides_of(set_, engine, workers)
    request = Reproduction(study, budget, whole_numbers(seeds), overrides, data_dir)
    folder = out / budget
    kept = folder / f"{study}.missing.json"

    def show() -> None:
        result = collect(request, out, document.read_reasons(kept))
        with console.status("writing tables and charts"):
            files = document.write(result, folder)
        for table in result.sheets:
            print_whole(console, sheet(table))
        say(console, document.closing(result, files))

    request.trials(words)  # a word of --only that means nothing is a mistake, also with --no-run
    reasons: dict[str, str] = {}
    with repeatable():
        try:
            if not no_run:
                run_study(request, out, reasons, words, watch_runs(console))
        except KeyboardInterrupt:
            document.write_reasons(kept, reasons)
            show()  # a study that was stopped has a table, too
            raise
    document.write_reasons(kept, reasons)
    show()
