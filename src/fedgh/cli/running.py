"""Commands that train or show an experiment: `fedgh run`, `resume`, `partition`."""

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
    start_workers_early,
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
    out: Annotated[
        Path | None, typer.Option(help="The run folder (default: a new one in runs/).")
    ] = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Train a federation and write a run folder."""
    start_workers_early(Path(experiment), set_, engine)
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
            folder.rmdir()  # succeeds only if the run has written nothing
        raise
    show_result(console, finished)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    set_: Set = None,
    engine: Engine = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Resume a stopped run; the result equals that of an uninterrupted run.

    This imports the code and opens the data that the run names: use it only for your own runs.
    Settings that do not change the result can be changed, e.g. --set run.memory=1.
    """
    start_workers_early(run / "config.toml", set_, engine)
    from fedgh.training import loop
    from fedgh.training.progress import Live

    console = Console(quiet=quiet)
    with resumable(run), Live(console) as live:
        settings = dict(engine_settings(engine, workers))
        finished = loop.resume(run, [live], overrides=set_ or [], **settings)
    show_result(console, finished)


def partition(experiment: Name = "demo", set_: Set = None, data_dir: DataDir = None) -> None:
    """Draw the classes and samples of every client, and tell how hard this partition is."""
    from fedgh import config
    from fedgh.report.terminal import partition_picture
    from fedgh.training import difficulty
    from fedgh.training.experiment import prepare

    console = Console()
    prepared = prepare(config.load(experiment, set_ or [], data_dir))
    partition_picture(prepared, console)
    with console.status(
        "computing the linear accuracy, also of other seeds; a minute for 60,000 images"
    ):
        text = difficulty.describe(prepared)
    if text:
        console.print(text, highlight=False, markup=False)
