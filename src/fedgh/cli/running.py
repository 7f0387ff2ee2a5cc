"""Train: `fedgh run`, `resume`, and what an experiment would be."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.cli.helpers import (
    engine_settings,
    free_folder,
    overrides_of,
    resumable,
    show_result,
)
from fedgh.cli.options import (
    DataDir,
    Engine,
    Name,
    Quiet,
    Set,
    Workers,
)
from fedgh.errors import FedghError


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
    from fedgh.training import loop
    from fedgh.training.experiment import prepare
    from fedgh.training.progress import Live

    console = Console(quiet=quiet)
    settings = config.load(experiment, overrides_of(set_, engine, workers), data_dir)
    with console.status(f"loading {settings.data.name}"):
        prepared = prepare(settings)
    folder = out or free_folder(Path("runs", Path(experiment).stem))
    try:
        with resumable(folder), Live(console) as live:
            finished = loop.run(prepared, folder, [live])
    except FedghError:
        with suppress(OSError):
            folder.rmdir()  # if the run has not begun
        raise
    show_result(console, finished)


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
    from fedgh.training import loop
    from fedgh.training.progress import Live

    console = Console(quiet=quiet)
    with resumable(run), Live(console) as live:
        chosen = dict(engine_settings(engine, workers))
        finished = loop.resume(run, [live], overrides=set_ or [], **chosen)
    show_result(console, finished)


def partition(experiment: Name = "demo", set_: Set = None, data_dir: DataDir = None) -> None:
    """Draw which client holds which classes."""
    from fedgh import config
    from fedgh.report.terminal import partition_picture
    from fedgh.training.experiment import prepare

    partition_picture(prepare(config.load(experiment, set_ or [], data_dir)), Console())
