"""Commands that make several runs: `fedgh compare`, `advise`, `tune`, `reproduce`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.choices import BudgetName
from fedgh.cli.helpers import (
    overrides_of,
    print_missing,
    resumable_sweep,
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
from fedgh.defaults import COMPARED_METHODS, SEEDS
from fedgh.errors import RunError

DEFAULT_SEEDS = ",".join(map(str, SEEDS))


def compare(
    experiment: Name = "demo",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with optional settings: fedgh,fedgh:server_lr=0,standalone; or all that "
            "fit the experiment: all. Default: those of the FedGH paper, and FedGH+."
        ),
    ] = None,
    seeds: Seeds = DEFAULT_SEEDS,
    rounds: Rounds = None,
    reference: Annotated[
        str,
        typer.Option(
            help="Method that the others are compared with; if not run, the first method."
        ),
    ] = "fedgh",
    last: Annotated[
        int,
        typer.Option(min=1, help="Number of last evaluations over which the result is the mean."),
    ] = 1,
    settings: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings of each method, such as `fedgh tune` writes."),
    ] = None,
    set_: Set = None,
    out: SweepOut = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same clients, data, initial weights and batches."""
    from fedgh.files import write_atomic
    from fedgh.report.terminal import comparison, print_whole, say, sheet
    from fedgh.studies import statistics
    from fedgh.studies.sweep import plan_comparison, run_trials, split_label
    from fedgh.studies.tuning import read_settings

    console = Console(quiet=quiet)
    overrides = overrides_of(set_, engine, workers, rounds)
    tuned = read_settings(settings) if settings else {}
    names = COMPARED_METHODS if methods is None else methods
    trials = plan_comparison(experiment, names, whole_numbers(seeds), overrides, data_dir, tuned)
    labels = dict.fromkeys(trial.label for trial in trials)
    if unused := set(tuned) - {split_label(label)[0] for label in labels}:
        say(console, f"{settings}: not compared, so not used: {', '.join(sorted(unused))}")
    if reference not in labels:
        reference = trials[0].label
    folder = out or Path("runs") / f"compare-{Path(experiment).stem}"
    with resumable_sweep():
        # A method that the user has not named and that does not fit is no mistake.
        unnamed = methods is None or methods.strip() == "all"
        outcome = run_trials(trials, folder, watch_runs(console), skip_impossible=unnamed)
    table = statistics.rows(outcome, last, reference)
    target = trials[0].config.federation.target
    numbers = whole_numbers(seeds)
    about = {"reference": reference, "last": last, "target": target, "seeds": numbers}
    statistics.write(table, outcome, folder / "comparison", about)
    print_whole(console, comparison(table, outcome.missing, target))
    by_network = statistics.network_sheet(outcome, last)
    if by_network is not None:
        write_atomic(folder / "networks.csv", by_network.csv().encode())
        print_whole(console, sheet(by_network))
    print_missing(console, outcome.missing)
    if not table:
        label, reason = next(iter(outcome.missing.items()))
        raise RunError(f"no method has a result to compare; {label}: {reason}")
    say(
        console,
        f"accuracy  mean ± std over {len(numbers)} seed(s) of the mean over clients, each on its "
        f"own test data, in the last {last} evaluated round(s)\n"
        "global    accuracy on test data of all clients, with equally many samples per class; - "
        "if not measured\n"
        f"diff, p   difference to {reference} in points; sign-flip test paired over clients and "
        "seeds, not corrected for the number of methods\n"
        "B/c/r     bytes sent up and down per client and round; paper's: as the FedGH paper "
        "computes them\n"
        f"written to {folder / 'comparison'}.csv and .json",
    )


def advise(
    experiment: Name = "demo",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to rehearse, e.g. fedgh,fedproto, or all (default: common ones)."
        ),
    ] = None,
    seeds: Seeds = DEFAULT_SEEDS,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of rounds of the rehearsal (default: 5, or all if fewer)."
        ),
    ] = None,
    set_: Set = None,
    out: SweepOut = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Rehearse methods on your data: show gain and bytes of each, and recommend one."""
    from fedgh.report.advised import table, text
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.studies.advice import advise

    console = Console(quiet=quiet)
    with resumable_sweep():
        advice = advise(
            experiment,
            methods=methods,
            rounds=rounds,
            seeds=whole_numbers(seeds),
            out=out,
            overrides=overrides_of(set_, engine, workers),
            data_dir=data_dir,
            watch=watch_runs(console),
        )
    print_whole(console, sheet(table(advice)))
    print_missing(console, advice.missing)
    say(console, text(advice))


def tune(
    experiment: Name = "demo",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=A,B",
            help="Values to try, or a range A..B; METHOD.KEY for a setting of one method.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods to tune, each with the same number of points: fedgh,fedproto."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Points to draw at random for each method; default: all."
        ),
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
    """Try settings and choose the best on the validation split, never on test data."""
    from fedgh.files import write_atomic
    from fedgh.formats import percent
    from fedgh.report.terminal import print_whole, say, search
    from fedgh.studies import statistics, tuning
    from fedgh.studies.sweep import run_trials

    console = Console(quiet=quiet)
    numbers = whole_numbers(seeds)
    overrides = overrides_of(set_, engine, workers, rounds)
    planned = tuning.plan_search(
        experiment, grid or [], numbers, overrides, data_dir, methods=methods, points=trials
    )
    folder = out or Path("runs") / f"tune-{Path(experiment).stem}"
    with resumable_sweep():
        outcome = run_trials(planned, folder, watch_runs(console))
    table = tuning.ranked(statistics.rows(outcome))
    about = {"grid": grid, "methods": methods, "trials": trials, "seeds": numbers}
    statistics.write(table, outcome, folder / "search", about)
    print_whole(console, search(table))
    print_missing(console, outcome.missing)
    if not table:
        raise RunError("no point of the grid has a result; the reasons are above")
    best = tuning.best_of_each(table)
    for row in best.values():
        say(console, f"best: {row.label}; its accuracy on test data is {percent(row.accuracy)}")
    if methods is None:
        file, content = folder / "best.toml", tuning.best_config(table, outcome).to_toml()
        hint = f"run it with: fedgh run {file}"
    else:
        file, content = folder / "tuned.toml", tuning.settings_toml(best, outcome)
        words = [experiment, "--methods", methods, "--settings", str(file)]
        words += [word for change in overrides for word in ("--set", change)]
        hint = f"compare them with: fedgh compare {shlex.join(words)}"
    write_atomic(file, content.encode())
    say(console, hint)


def reproduce(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="One of `fedgh list studies`, e.g. table-hetero.")
    ],
    budget: Annotated[
        BudgetName,
        typer.Option(
            help="Size of the runs. smoke: seconds; quick: for two cores; paper: for a GPU."
        ),
    ] = "quick",
    seeds: Seeds = "0",
    only: Annotated[
        str,
        typer.Option(
            help="Run only these settings and methods; patterns are allowed: cifar10-*,fedgh."
        ),
    ] = "",
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Run nothing; show the finished runs.")
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
    """Run a study, such as a table of the FedGH paper, and compare with the published numbers.

    Finished runs are not repeated; stopped runs are resumed.
    """
    from fedgh.report import document
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.studies.reproduce import Reproduction, collect, run_study

    console = Console(quiet=quiet)
    names = [name.strip() for name in only.split(",") if name.strip()]
    overrides = overrides_of(set_, engine, workers)
    request = Reproduction(study, budget, whole_numbers(seeds), overrides, data_dir)
    folder = out / budget
    reasons_file = folder / f"{study}.missing.json"

    def show() -> None:
        result = collect(request, out, document.read_reasons(reasons_file))
        with console.status("writing tables and charts"):
            files = document.write(result, folder)
        for table in result.sheets:
            print_whole(console, sheet(table))
        say(console, document.closing(result, files))

    request.trials(names)  # raises if --only has an unknown name, also with --no-run
    reasons: dict[str, str] = {}
    with resumable_sweep():
        try:
            if not no_run:
                run_study(request, out, reasons, names, watch_runs(console))
        except KeyboardInterrupt:
            document.write_reasons(reasons_file, reasons)
            show()  # the table of the runs that have finished
            raise
    document.write_reasons(reasons_file, reasons)
    show()
