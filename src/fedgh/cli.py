"""The commands, thin: parse, call, print."""

import sys
from dataclasses import fields
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from fedgh import __version__
from fedgh.errors import ConfigError, FedghError

# Everything else is imported by the command that needs it: torch alone takes over a second,
# and `fedgh --help` should not.

app = typer.Typer(
    help="Federated learning for clients whose models differ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Public data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

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


class EngineName(StrEnum):
    """Where the clients run."""

    serial = "serial"
    workers = "workers"


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    datasets = "datasets"
    experiments = "experiments"


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
    from fedgh import config
    from fedgh import experiment as experiments
    from fedgh.report.terminal import Live

    console = Console(quiet=quiet)
    overrides = [*(set_ or []), *(f"run.{key}={value}" for key, value in _engine(engine, workers))]
    settings = config.load(experiment, overrides, data_dir)
    with console.status(f"loading {settings.data.name}"):
        prepared = experiments.prepare(settings)
    folder = out or _free_folder(Path("runs"), Path(experiment).stem)
    with _resumable(folder), Live(console) as live:
        finished = experiments.run(prepared, folder, live)
    _show(console, finished)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    engine: Engine = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped; it ends as if it never had been."""
    from fedgh import experiment
    from fedgh.report.terminal import Live

    console = Console(quiet=quiet)
    with _resumable(run), Live(console) as live:
        finished = experiment.resume(run, live, dict(_engine(engine, workers)))
    _show(console, finished)


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

    if name not in OFFICIAL:
        raise ConfigError(unknown("data set to fetch", name, OFFICIAL))
    console = Console()
    with console.status(f"looking for {name}, downloading it if need be"):
        folder = locate(name, data_dir)
    console.print(f"{name} is in {folder}")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run a command; whatever a user can put right is one message, not a traceback."""
    sys.path.append(str(Path.cwd()))  # so that `my_module:my_extractor` is found
    try:
        app(standalone_mode=True)
    except FedghError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


class _resumable:  # noqa: N801 - used as a with-statement
    """Turn Ctrl-C into a word on how to go on."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            if (self.run / "config.toml").exists():
                print(f"\nstopped; go on with: fedgh resume {self.run}", file=sys.stderr)
            sys.exit(130)
        return False


def _show(console: Console, run: Any) -> None:
    from fedgh.report.terminal import closing_lines, result

    console.print(result(run))
    console.print(closing_lines(run), highlight=False, soft_wrap=True)


def _engine(engine: EngineName | None, workers: int | None) -> list[tuple[str, Any]]:
    chosen = [("engine", engine and engine.value), ("workers", workers)]
    return [(key, value) for key, value in chosen if value is not None]


def _free_folder(parent: Path, name: str) -> Path:
    """runs/demo, or runs/demo-2 and so on when that is taken."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(parent / free for free in names if not (parent / free).exists())


def _known(kind: Kind) -> dict[str, str]:
    from fedgh import config
    from fedgh.core.types import Task
    from fedgh.data.sources import SOURCES
    from fedgh.methods import METHODS
    from fedgh.models import EXTRACTORS, split_model

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
    return config.experiments()
