"""The commands, thin: parse, call, print."""

import io
import os
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgh import __version__
from fedgh.errors import ConfigError, FedghError, RunError

# Everything else is imported by the command that needs it: torch alone takes over a second,
# and `fedgh --help` should not.

app = typer.Typer(
    help="Federated learning for clients whose models differ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="Public data sets.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(data_app, name="data")
flower_app = typer.Typer(
    help="Real federations, on Flower.", no_args_is_help=True, rich_markup_mode="rich"
)
app.add_typer(flower_app, name="flower")

Name = Annotated[
    str, typer.Argument(metavar="[NAME|FILE.toml]", help="A named experiment or a TOML file.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value; may be repeated."),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Holds the data sets (else $FEDGH_DATA, else the user cache).")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


Seeds = Annotated[str, typer.Option(metavar="0,1,2", help="Seeds to average over.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of every run.")]
SweepOut = Annotated[
    Path | None, typer.Option(help="Holds the runs; what is there already is not run again.")
]


class EngineName(StrEnum):
    """Where the clients run."""

    serial = "serial"
    workers = "workers"
    ray = "ray"


class FigureFormat(StrEnum):
    """How figures are written."""

    svg = "svg"
    png = "png"
    pdf = "pdf"


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    datasets = "datasets"
    experiments = "experiments"
    studies = "studies"


class BudgetName(StrEnum):
    """How much of a study is computed."""

    smoke = "smoke"
    quick = "quick"
    paper = "paper"


class ExportFormat(StrEnum):
    """How a model is written."""

    safetensors = "safetensors"
    onnx = "onnx"
    torch_export = "torch-export"


TrainedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder with its checkpoint.")
]
TrustIt = Annotated[
    bool,
    typer.Option(
        "--trust", help="The run is mine: import the code and open the files that it names."
    ),
]
OneClient = Annotated[str, typer.Option(metavar="K", help="Whose model: its number, or its name.")]
Engine = Annotated[EngineName | None, typer.Option(help="Where the clients run.")]
Workers = Annotated[int | None, typer.Option(min=0, help="Worker processes; 0 = one per core.")]


@app.command()
def run(
    experiment: Name = "demo",
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to write.")] = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Train a federation and write a run folder."""
    from fedgh import config, training
    from fedgh.experiment import prepare
    from fedgh.report.terminal import Live

    console = Console(quiet=quiet)
    settings = config.load(experiment, _overrides(set_, engine, workers), data_dir)
    with console.status(f"loading {settings.data.name}"):
        prepared = prepare(settings)
    folder = out or _free_folder(Path("runs", Path(experiment).stem))
    try:
        with _resumable(folder), Live(console) as live:
            finished = training.run(prepared, folder, live)
    except FedghError:
        with suppress(OSError):
            folder.rmdir()  # if the run has not begun
        raise
    _show(console, finished)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    set_: Set = None,
    engine: Engine = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped; it ends as if it never had been.

    Imports the code and opens the data that the run names: only for a run of your own.
    What does not change the result may be changed: --set run.memory=1.
    """
    from fedgh import training
    from fedgh.report.terminal import Live

    console = Console(quiet=quiet)
    with _resumable(run), Live(console) as live:
        chosen = dict(_engine(engine, workers))
        finished = training.resume(run, live, overrides=set_ or [], **chosen)
    _show(console, finished)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Else RUN/report.html, of several ./report.html."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every chart into this folder.")
    ] = None,
    format_: Annotated[
        FigureFormat, typer.Option("--format", help="Of these figures.")
    ] = FigureFormat.svg,
    trust: TrustIt = False,
) -> None:
    """Write one HTML page about a run, or about several side by side; it opens offline."""
    from fedgh.report.terminal import say
    from fedgh.report.write import write_report
    from fedgh.trust import how_far

    console = Console()
    with console.status("writing the report"):
        page = write_report(runs, out, figures, format_.value, trust=how_far(trust))
    say(console, f"report     {page}")
    if figures is not None:
        say(console, f"figures    {figures}")


@app.command()
def clients(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Show who took part in a run, with which network and classes, and how well it does."""
    from fedgh.report.clients import client_sheet
    from fedgh.report.runs import name_runs
    from fedgh.report.terminal import print_whole, say, sheet

    console = Console()
    (named,) = name_runs([run])
    table = client_sheet(named)
    print_whole(console, sheet(table))
    if table.note:
        say(console, table.note)


@app.command()
def predict(
    run: TrainedRun,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Images, folders of them, .npy or .npz (x) files."),
    ],
    client: OneClient,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write it there.")] = None,
    trust: TrustIt = False,
) -> None:
    """Say what a client's model takes images or arrays for."""
    from dataclasses import replace

    from fedgh.core.disk import write_atomic
    from fedgh.predict import predict
    from fedgh.report.terminal import MOST_ROWS, print_whole, say, sheet
    from fedgh.trained import Trained

    console = Console()
    with console.status("predicting"):
        table = predict(Trained.load(run, trust=trust).clients[client], paths)
    if csv is not None:
        write_atomic(csv, table.csv().encode())
    print_whole(console, sheet(replace(table, rows=table.rows[:MOST_ROWS])))
    if len(table.rows) > MOST_ROWS:
        say(console, f"{len(table.rows) - MOST_ROWS} more rows; --csv FILE writes all")
    say(console, table.note)


@app.command()
def export(
    run: TrainedRun,
    client: OneClient,
    format_: Annotated[ExportFormat, typer.Option("--format", help="Of the file.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Else RUN/export/client-K with an ending.")
    ] = None,
    trust: TrustIt = False,
) -> None:
    """Write a client's model for other programs, and check that it still says the same."""
    from fedgh.core.disk import check_no_link
    from fedgh.export import FORMATS
    from fedgh.report.terminal import human_bytes, say
    from fedgh.trained import Trained

    console = Console()
    with console.status("exporting"):
        trained = Trained.load(run, data=True, trust=trust).clients[client]
        ending = FORMATS[format_.value].ending
        if out is None:
            check_no_link(run / "export")
        path = out or run / "export" / f"client-{trained.number}{ending}"
        done = trained.export(path, format_.value)
    hint = "" if trust else ", or not trusted (--trust)"
    whose = "of its own test samples" if done.own else f"random inputs: its data are not here{hint}"
    say(
        console,
        f"written    {done.path} ({human_bytes(done.path.stat().st_size)})\n"
        f"checked    on {done.samples} {whose}: logits differ by at most {done.difference:.1e} of "
        "the largest",
    )


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with its checkpoint.")],
    client: Annotated[
        int | None, typer.Option(min=0, help="The victim; else the first that took part.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the attacks, not of the run.")] = 0,
    trust: TrustIt = False,
    quiet: Quiet = False,
) -> None:
    """Attack a client of a finished run: what do its uploads tell about its samples?"""
    from fedgh.audit import audit, result
    from fedgh.core.runs import RunFolder
    from fedgh.report.audit_sheets import overview
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.report.write import report_after
    from fedgh.trust import how_far

    console = Console(quiet=quiet)
    folder = RunFolder(run)
    with console.status("") as status:
        found = audit.audit(folder, client, seed, status.update, trust=how_far(trust))
        path = result.write(folder, found)
        status.update("writing the report")
        line = report_after(folder, how_far(trust))
    table = overview(found)
    print_whole(console, sheet(table))
    say(
        console,
        f"{table.note}\n"
        "Which classes a client holds is visible by design; noise does not hide it.\n"
        f"audit      {path}\n{line}",
    )


@app.command()
def forget(
    run: TrainedRun,
    client: Annotated[int, typer.Option(min=0, help="The client that leaves.")],
    trust: TrustIt = False,
) -> None:
    """Take a client out of a run: its header becomes one that was made without the client."""
    from fedgh.forget import forget
    from fedgh.report.terminal import say

    console = Console()
    with console.status(f"forgetting client {client}"):
        done = forget(run, client, trust=trust)
    others = (
        "the other participants get the new header in their next round"
        if done.elsewhere
        else f"{done.refreshed} other clients have the new header"
    )
    say(console, f"forgotten  client {client} of {run}; {others}")


@app.command(name="join")
def join_(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    data: Annotated[
        Path, typer.Option(help="The newcomer's own: a folder of images by class, or an .npz file.")
    ],
    network: Annotated[
        str, typer.Option(help="One of `fedgh list models`, or package.module:function.")
    ],
    rounds: Annotated[int, typer.Option(min=1, help="Of the newcomer's own training.")] = 20,
    image_size: Annotated[int, typer.Option(min=1, help="What images are scaled to.")] = 32,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep its model and the numbers there.")
    ] = None,
    trust: TrustIt = False,
    quiet: Quiet = False,
) -> None:
    """Let a newcomer learn with the global header of a run, and measure what that is worth."""
    from fedgh import join
    from fedgh.core.runs import RunFolder
    from fedgh.report.joined import curve, verdict
    from fedgh.report.terminal import print_whole, say, sheet

    console = Console(quiet=quiet)
    folder = RunFolder.open(run)
    with console.status("a newcomer joins") as status:
        found = join.join(
            folder,
            join.newcomer(folder, network, data, image_size, trust=trust),
            rounds,
            lambda round, *_: status.update(f"round {round} of {rounds}"),
            trust=trust,
        )
        files = join.keep(found, out) if out is not None else []
    print_whole(console, sheet(curve(found)))
    say(console, "\n".join([verdict(found), *(f"written    {file}" for file in files)]))


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = one that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open one.")] = True,
) -> None:
    """Show a run in the browser while it goes on, until Ctrl-C."""
    from fedgh.report.extra import need_report

    need_report()
    from fedgh.report.live import LiveServer
    from fedgh.report.runs import name_runs

    name_runs([run])  # a mistake is told here, not in the browser
    with LiveServer(run, port) as server, suppress(KeyboardInterrupt):
        print(f"{run} is shown at {server.url} until Ctrl-C", flush=True)
        if browser:
            webbrowser.open(server.url)
        server.serve_forever()


@app.command()
def compare(
    experiment: Name = "demo",
    methods: Annotated[
        str, typer.Option(help="all, or names: fedgh,fedgh:server_lr=0,standalone.")
    ] = "all",
    seeds: Seeds = "0,1,2",
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
    from fedgh import statistics
    from fedgh.report.terminal import comparison, print_whole, say
    from fedgh.sweep import plan_comparison, run_trials

    console = Console(quiet=quiet)
    overrides = _overrides(set_, engine, workers, rounds)
    trials = plan_comparison(experiment, methods, _numbers(seeds), overrides, data_dir)
    if reference not in {trial.label for trial in trials}:
        reference = trials[0].label
    folder = out or Path("runs") / f"compare-{Path(experiment).stem}"
    with _again():
        outcome = run_trials(trials, folder, _watch(console), skip_impossible=methods == "all")
    table = statistics.rows(outcome, last, reference)
    target = trials[0].config.federation.target
    numbers = _numbers(seeds)
    about = {"reference": reference, "last": last, "target": target, "seeds": numbers}
    statistics.write(table, outcome, folder / "comparison", about)
    print_whole(console, comparison(table, outcome.missing, target))
    _say_missing(console, outcome.missing)
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


@app.command()
def advise(
    experiment: Name = "demo",
    methods: Annotated[
        str | None,
        typer.Option(help="What to rehearse: fedgh,fedproto or all; else the usual ones."),
    ] = None,
    seeds: Seeds = "0,1,2",
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
    from fedgh.advice import advise
    from fedgh.report.advised import table, words
    from fedgh.report.terminal import print_whole, say, sheet

    console = Console(quiet=quiet)
    with _again():
        found = advise(
            experiment,
            methods=methods,
            rounds=rounds,
            seeds=_numbers(seeds),
            out=out,
            overrides=_overrides(set_, engine, workers),
            data_dir=data_dir,
            watch=_watch(console),
        )
    print_whole(console, sheet(table(found)))
    _say_missing(console, found.missing)
    say(console, words(found))


@app.command()
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
    """Search a grid of settings, judged on the evaluation split; test data choose nothing."""
    from fedgh import statistics
    from fedgh.core.disk import write_atomic
    from fedgh.report.terminal import percent, print_whole, say, search
    from fedgh.sweep import plan_search, run_trials

    console = Console(quiet=quiet)
    if not grid:
        raise ConfigError("nothing to search: give at least one --grid section.key=value,value")
    overrides = _overrides(set_, engine, workers, rounds)
    trials = plan_search(experiment, grid, _numbers(seeds), overrides, data_dir)
    folder = out or Path("runs") / f"tune-{Path(experiment).stem}"
    with _again():
        outcome = run_trials(trials, folder, _watch(console))
    table = statistics.rows(outcome)
    table.sort(key=lambda row: -1 if row.evaluation_accuracy is None else -row.evaluation_accuracy)
    statistics.write(table, outcome, folder / "search", {"grid": grid, "seeds": _numbers(seeds)})
    print_whole(console, search(table))
    _say_missing(console, outcome.missing)
    if not table:
        raise RunError("no point of the grid could be trained")
    best = next(trial for trial, _ in outcome.runs if trial.label == table[0].label)
    write_atomic(folder / "best.toml", best.config.to_toml().encode())
    say(
        console,
        f"best: {best.label}; its accuracy on test data is {percent(table[0].accuracy)}\n"
        f"run it with: fedgh run {folder / 'best.toml'}",
    )


@app.command()
def reproduce(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="One of `fedgh list studies`, e.g. table-hetero.")
    ],
    budget: Annotated[
        BudgetName, typer.Option(help="smoke: seconds; quick: two cores; paper: a graphics card.")
    ] = BudgetName.quick,
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
    from fedgh.paper import document
    from fedgh.paper.reproduce import Request, collect, run_study
    from fedgh.report.terminal import print_whole, say, sheet

    console = Console(quiet=quiet)
    words = [word.strip() for word in only.split(",") if word.strip()]
    overrides = _overrides(set_, engine, workers)
    request = Request(study, budget.value, _numbers(seeds), overrides, data_dir)
    folder = out / budget.value
    kept = folder / f"{study}.missing.json"

    def show() -> None:
        result = collect(request, out, document.kept_reasons(kept))
        with console.status("writing tables and charts"):
            files = document.write(result, folder)
        for table in result.sheets:
            print_whole(console, sheet(table))
        say(console, document.closing(result, files))

    request.trials(words)  # a word of --only that means nothing is a mistake, also with --no-run
    reasons: dict[str, str] = {}
    with _again():
        try:
            if not no_run:
                run_study(request, out, reasons, words, _watch(console))
        except KeyboardInterrupt:
            document.keep_reasons(kept, reasons)
            show()  # a study that was stopped has a table, too
            raise
    document.keep_reasons(kept, reasons)
    show()


@app.command()
def partition(experiment: Name = "demo", set_: Set = None, data_dir: DataDir = None) -> None:
    """Draw which client holds which classes."""
    from fedgh import config
    from fedgh.experiment import prepare
    from fedgh.report.terminal import partition_picture

    partition_picture(prepare(config.load(experiment, set_ or [], data_dir)), Console())


@app.command(name="list")
def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List what can be named in an experiment."""
    from fedgh.report.terminal import listing

    Console().print(listing(_known(kind)))


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, cifar100, fashion-mnist")],
    data_dir: DataDir = None,
) -> None:
    """Download a public data set and verify it."""
    from fedgh.data.fetch import OFFICIAL, locate
    from fedgh.errors import unknown
    from fedgh.report.terminal import Download, say

    if name not in OFFICIAL:
        raise ConfigError(unknown("data set to fetch", name, OFFICIAL))
    console = Console()
    folder = locate(name, data_dir, progress=Download(console, name))
    say(console, f"{name} is in {folder}")


FederationDir = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]
FederationOut = Annotated[Path | None, typer.Option(help="The run folder; else DIR/run.")]


@flower_app.command()
def init(
    folder: FederationDir,
    experiment: Name = "demo",
    set_: Set = None,
    host: Annotated[
        str, typer.Option(help="By what name participants will reach the server.")
    ] = "127.0.0.1",
    node_config: Annotated[
        str, typer.Option(metavar="'KEY=\"VALUE\" ...'", help="Settings for every participant.")
    ] = "",
    data_dir: DataDir = None,
) -> None:
    """Write certificates, keys, the app and start scripts for a federation."""
    from fedgh import config
    from fedgh.experiment import prepare
    from fedgh.flower.folder import FederationFolder
    from fedgh.report.terminal import say

    settings = config.load(experiment, set_ or [], data_dir)
    prepare(settings)
    made = FederationFolder.create(folder, settings, host=host, node_config=node_config)
    say(
        Console(),
        f"{made.path} has {settings.federation.clients} participants\n"
        f"on this machine: fedgh flower up {made.path}\n"
        f"between machines: see {made.path / 'README.md'}",
    )


@flower_app.command()
def up(folder: FederationDir, out: FederationOut = None, quiet: Quiet = False) -> None:
    """Run a federation on this machine, with TLS and keys; what was broken off goes on."""
    from fedgh.flower import operate

    console = Console(quiet=quiet)
    run = out or folder / "run"
    try:
        finished = operate.up(folder, run, console)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on with {run}", file=sys.stderr)
        sys.exit(130)
    _show(console, finished)


@flower_app.command()
def join(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder that the operator gave you.")
    ] = Path(),
) -> None:
    """Take part in a federation, until Ctrl-C."""
    from fedgh.flower import node

    try:
        node.join(folder, print)
    except KeyboardInterrupt:
        print("left the federation; the same command joins it again", file=sys.stderr)
        sys.exit(130)


@flower_app.command()
def status(folder: FederationDir, out: FederationOut = None) -> None:
    """Show what runs, and how far it has come."""
    from fedgh.flower import operate

    operate.status(folder, out or folder / "run", Console())


@flower_app.command()
def stop(folder: FederationDir) -> None:
    """End a federation on this machine."""
    from fedgh.flower import operate

    print("stopped" if operate.stop(folder) else "nothing is running")


@app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="A few minutes instead of twenty.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers there, as JSON.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Measure this machine: rounds, header, scale, beside what it could do at best."""
    from fedgh.bench.suite import SECTIONS
    from fedgh.report.bench import bench

    bench(Console(), SECTIONS, quick=quick, data_dir=data_dir, out=out)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot draw a box still works
    with in_words():
        sys.path.append(str(Path.cwd()))  # so that `my_module:my_extractor` is found
        app(standalone_mode=True)


@contextmanager
def in_words() -> Iterator[None]:
    """Whatever a user can put right is one message, not a traceback, and the end."""
    try:
        yield
    except FedghError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except BrokenPipeError:  # whoever read our output has gone, as in `fedgh run | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a missing permission: the text names the file
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _resumable(run: Path) -> Iterator[None]:
    """Turn Ctrl-C into a word on how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if (run / "config.toml").exists():
            print(f"\nstopped; go on with: fedgh resume {run}", file=sys.stderr)
        sys.exit(130)


@contextmanager
def _again() -> Iterator[None]:
    """The same for a sweep."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def _watch(console: Console) -> Callable[[str], Any]:
    from fedgh.report.terminal import Live, say

    def watch(line: str) -> Live:
        say(console, line)
        return Live(console)

    return watch


def _say_missing(console: Console, missing: dict[str, str]) -> None:
    from fedgh.report.terminal import say

    for label, reason in missing.items():
        say(console, f"{label}: {reason}")


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ConfigError(f"--seeds {text}: expected whole numbers, e.g. 0,1,2") from None


def _overrides(
    set_: list[str] | None,
    engine: EngineName | None,
    workers: int | None,
    rounds: int | None = None,
) -> list[str]:
    how = [f"run.{key}={value}" for key, value in _engine(engine, workers)]
    return [*(set_ or []), *how, *([f"federation.rounds={rounds}"] if rounds else [])]


def _show(console: Console, run: Any) -> None:
    from fedgh.report.terminal import closing_lines, result, say
    from fedgh.report.write import report_after

    console.print(result(run))
    say(console, closing_lines(run))
    with console.status("writing the report"):
        line = report_after(run)
    say(console, line)


def _engine(engine: EngineName | None, workers: int | None) -> list[tuple[str, Any]]:
    chosen = [("engine", engine and engine.value), ("workers", workers)]
    return [(key, value) for key, value in chosen if value is not None]


def _free_folder(wanted: Path) -> Path:
    """Make runs/demo, or runs/demo-2 and so on when that is taken.

    Made at once, so that of two processes each gets its own.
    """
    from fedgh.core.disk import make_folder

    make_folder(wanted.parent)
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def _known(kind: Kind) -> dict[str, str]:
    from fedgh import config
    from fedgh.core.types import Task
    from fedgh.data.sources import SOURCES
    from fedgh.methods import METHODS
    from fedgh.models import EXTRACTORS, split_model
    from fedgh.paper.study import studies

    if kind is Kind.methods:
        return {
            name: ", ".join(f"{f.name} = {f.default}" for f in fields(method)) or "no settings"
            for name, method in METHODS.items()
        }
    if kind is Kind.models:
        own = {"package.module:function": "your own: (input shape, rep_dim) -> torch.nn.Module"}
        task = Task(10, 500, num_clients=1, rounds=1, seed=0, input_shape=(3, 32, 32))
        sizes = {
            name: sum(p.numel() for p in split_model(make, task).parameters())
            for name, make in EXTRACTORS.items()
        }
        note = "parameters for 3x32x32 images, 10 classes"
        return {**{name: f"{size:>10,} {note}" for name, size in sizes.items()}, **own}
    if kind is Kind.datasets:
        return {name: (s.__doc__ or "").splitlines()[0] for name, s in SOURCES.items()}
    if kind is Kind.studies:
        return {name: f"{study.title} ({study.source})" for name, study in studies().items()}
    return config.experiments()
