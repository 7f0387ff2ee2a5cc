"""Commands that make several runs: `fedgh compare`, `advise`, `tune`, `reproduce`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Jobs,
    Name,
    NoRun,
    Quiet,
    Rounds,
    Seeds,
    Set,
    SweepOut,
    Workers,
)
from fedgh.defaults import COMPARED_METHODS, SEEDS
from fedgh.errors import RunError

if TYPE_CHECKING:
    from fedgh.studies.sweep import Trial
    from fedgh.studies.sweep_folder import Sweep

REASONS = "missing.json"
"""Name of the file with the reasons why runs of a comparison have no result."""

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
    no_run: NoRun = False,
    out: SweepOut = None,
    engine: Engine = None,
    workers: Workers = None,
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same clients, data, initial weights and batches."""
    from fedgh.files import write_atomic
    from fedgh.report.terminal import comparison, print_whole, say, sheet
    from fedgh.report.write import sweep_report_after
    from fedgh.studies import sweep_folder
    from fedgh.studies.statistics import network_sheet
    from fedgh.studies.sweep import join_seeds, plan_comparison, split_label
    from fedgh.studies.sweep_sheets import tests_text
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
    target = trials[0].config.federation.target
    numbers = whole_numbers(seeds)
    about = {"reference": reference, "last": last, "target": target, "seeds": numbers}
    # A method that the user has not named and that does not fit is no mistake.
    unnamed = methods is None or methods.strip() == "all"
    if no_run:
        sweep = _collected(trials, folder, sweep_folder.COMPARISON, about)
    else:
        sweep = _run(trials, folder, sweep_folder.COMPARISON, about, console, jobs, unnamed)
    missing = join_seeds(sweep.missing)
    print_whole(console, comparison(sweep.rows, missing, target))
    by_network = network_sheet(sweep.runs, last)
    if by_network is not None:
        write_atomic(folder / "networks.csv", by_network.csv().encode())
        print_whole(console, sheet(by_network))
    print_missing(console, missing)
    if not sweep.rows:
        label, reason = next(iter(missing.items()))
        hint = "; name only seeds whose runs have finished" if no_run else ""
        raise RunError(f"no method has a result to compare; {label}: {reason}{hint}")
    with console.status("writing the report"):
        report = sweep_report_after(folder)
    say(
        console,
        f"accuracy  mean ± std over {len(numbers)} seed(s) of the mean over clients, each on its "
        f"own test data, in the last {last} evaluated round(s)\n"
        "global    accuracy on test data of all clients, with equally many samples per class; - "
        "if not measured\n"
        f"diff      difference to {reference} in points\n"
        f"p         corrected, like p seeds (Holm). {tests_text(sweep)}\n"
        "B/c/r     bytes sent up and down per client and round; paper's: as the FedGH paper "
        "computes them\n"
        f"written to {folder / 'comparison'}.csv and .json\n"
        f"{report}",
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
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Rehearse methods on your data: show gain and bytes of each, and recommend one."""
    from fedgh.report.advised import table, text
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.studies.advice import advise

    console = Console(quiet=quiet)
    with resumable_sweep(), watch_runs(console) as watch:
        advice = advise(
            experiment,
            methods=methods,
            rounds=rounds,
            seeds=whole_numbers(seeds),
            out=out,
            overrides=overrides_of(set_, engine, workers),
            data_dir=data_dir,
            watch=watch,
            jobs=jobs,
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
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Try settings and choose the best on the validation split, never on test data."""
    from fedgh.files import write_atomic
    from fedgh.formats import percent
    from fedgh.report.terminal import print_whole, say, search
    from fedgh.report.write import sweep_report_after
    from fedgh.studies import sweep_folder, tuning

    console = Console(quiet=quiet)
    numbers = whole_numbers(seeds)
    overrides = overrides_of(set_, engine, workers, rounds)
    planned = tuning.plan_search(
        experiment, grid or [], numbers, overrides, data_dir, methods=methods, points=trials
    )
    folder = out or Path("runs") / f"tune-{Path(experiment).stem}"
    about = {"grid": grid, "methods": methods, "trials": trials, "seeds": numbers}
    sweep = _run(planned, folder, sweep_folder.SEARCH, about, console, jobs)
    table = sweep.rows
    print_whole(console, search(table))
    print_missing(console, sweep.missing)
    if not table:
        raise RunError("no point of the grid has a result; the reasons are above")
    best = tuning.best_of_each(table)
    for row in best.values():
        say(console, f"best: {row.label}; its accuracy on test data is {percent(row.accuracy)}")
    if methods is None:
        file, content = folder / "best.toml", tuning.best_config(table, planned).to_toml()
        hint = f"run it with: fedgh run {file}"
    else:
        file, content = folder / "tuned.toml", tuning.settings_toml(best, planned)
        words = [experiment, "--methods", methods, "--settings", str(file)]
        words += [word for change in overrides for word in ("--set", change)]
        hint = f"compare them with: fedgh compare {shlex.join(words)}"
    write_atomic(file, content.encode())
    with console.status("writing the report"):
        report = sweep_report_after(folder)
    say(console, f"{hint}\n{report}")


def _run(
    trials: list["Trial"],
    folder: Path,
    name: str,
    about: dict[str, Any],
    console: Console,
    jobs: int,
    skip_impossible: bool = False,
) -> "Sweep":
    """Run the trials of a comparison or a search, and write their table, also if they stop."""
    from fedgh.report.document import write_reasons
    from fedgh.report.terminal import say
    from fedgh.studies import sweep_folder
    from fedgh.studies.sweep import collect_runs, run_trials

    missing: dict[str, str] = {}
    search = name == sweep_folder.SEARCH
    with resumable_sweep(), watch_runs(console, search=search) as watch:
        try:
            outcome = run_trials(trials, folder, watch, skip_impossible, missing, jobs)
        except KeyboardInterrupt:
            finished = collect_runs(trials, folder, missing)
            if finished.runs:
                sweep_folder.write(folder, name, finished.without_failed(), about)
                say(console, f"the finished runs: fedgh report {folder}")
            raise
    write_reasons(folder / REASONS, outcome.missing)
    return sweep_folder.write(folder, name, outcome, about)


def _collected(trials: list["Trial"], folder: Path, name: str, about: dict[str, Any]) -> "Sweep":
    """Write the table of the runs that other commands have made; run nothing."""
    from fedgh.report.document import read_reasons
    from fedgh.studies import sweep_folder
    from fedgh.studies.sweep import collect_runs

    if not folder.is_dir():
        raise RunError(f"{folder} does not exist; leave out --no-run to run the comparison")
    collected = collect_runs(trials, folder, read_reasons(folder / REASONS))
    return sweep_folder.write(folder, name, collected.without_incomplete(), about)


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
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="Seeds of the runs. Default: those of the study."),
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            help="Run only these settings and methods; patterns are allowed: cifar10-*,fedgh."
        ),
    ] = "",
    no_run: NoRun = False,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The folder for runs and tables.")] = Path(
        "runs/reproduce"
    ),
    engine: Engine = None,
    workers: Workers = None,
    jobs: Jobs = 1,
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
    numbers = whole_numbers(seeds) if seeds is not None else ()
    request = Reproduction(study, budget, numbers, overrides, data_dir)
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
                with watch_runs(console) as watch:
                    run_study(request, out, reasons, names, watch, jobs)
        except KeyboardInterrupt:
            document.write_reasons(reasons_file, reasons)
            show()  # the table of the runs that have finished
            raise
    document.write_reasons(reasons_file, reasons)
    show()
