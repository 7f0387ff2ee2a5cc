"""Commands for federations between machines: `fedgh flower ...`."""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.choices import TextFormat
from fedgh.cli.flower_upkeep import warn_of_ends
from fedgh.cli.helpers import show_result
from fedgh.cli.options import (
    DataDir,
    FederationDir,
    FederationOut,
    Name,
    Quiet,
    Set,
)

LogFormat = Annotated[
    TextFormat, typer.Option(help="Format of logs: text, or one JSON object per line.")
]


def init(
    folder: FederationDir,
    experiment: Name = "demo",
    set_: Set = None,
    host: Annotated[
        str, typer.Option(help="Name or address at which clients reach the server.")
    ] = "127.0.0.1",
    node_config: Annotated[
        str,
        typer.Option(metavar="'KEY=\"VALUE\" ...'", help="Flower node settings of every client."),
    ] = "",
    data_dir: DataDir = None,
) -> None:
    """Write the folder of a federation: certificates, keys, the app and start scripts."""
    from fedgh import config
    from fedgh.flower.folder import FederationFolder
    from fedgh.report.terminal import say
    from fedgh.training.experiment import prepare

    settings = config.load(experiment, set_ or [], data_dir)
    prepare(settings)
    federation = FederationFolder.create(folder, settings, host=host, node_config=node_config)
    say(
        Console(),
        f"{federation.path} has the files of {settings.federation.clients} clients\n"
        f"on this machine: fedgh flower up {federation.path}\n"
        f"between machines: see {federation.path / 'README.md'}",
    )


def up(
    folder: FederationDir,
    out: FederationOut = None,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
    metrics: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve metrics for Prometheus on this port of 127.0.0.1."
        ),
    ] = None,
) -> None:
    """Run a federation on this machine, with TLS and keys; a stopped run is resumed."""
    from fedgh.flower import logs, operate
    from fedgh.flower.display import UpBars, UpLog
    from fedgh.report.terminal import closing_lines, say
    from fedgh.report.write import report_after

    run = out or folder / "run"
    console = Console(quiet=quiet)
    progress: UpBars | UpLog = UpBars(console)
    tell: Callable[[str], None] = partial(say, console)
    if log_format == "json":
        os.environ[logs.VARIABLE] = "json"  # also for the processes that it starts
        logs.configure(logging.WARNING if quiet else logging.INFO)
        progress, tell = UpLog(), logging.getLogger("fedgh.up").info
    warn_of_ends(folder, tell)
    try:
        finished = operate.up(folder, run, progress, tell, metrics)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command resumes {run}", file=sys.stderr)
        sys.exit(130)
    if log_format == "text" or not finished.finished:
        show_result(console, finished)
    else:
        for line in (*closing_lines(finished).splitlines(), report_after(finished)):
            tell(line)


def join(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder that the operator gave you.")
    ] = Path(),
    log_format: LogFormat = "text",
) -> None:
    """Take part in a federation as a client, until Ctrl-C."""
    from fedgh.flower import logs, node

    if log_format == "json":
        os.environ[logs.VARIABLE] = "json"  # also for the processes that it starts
    try:
        node.join(folder, logs.print_line)
    except KeyboardInterrupt:
        print("left the federation; the same command joins it again", file=sys.stderr)
        sys.exit(130)


def status(
    folder: FederationDir,
    out: FederationOut = None,
    format_: Annotated[
        TextFormat, typer.Option("--format", help="text for people, json for programs.")
    ] = "text",
) -> None:
    """Show a federation: who is connected, each client's last answer, the round in progress."""
    from fedgh.flower import operate
    from fedgh.report.terminal import say

    console = Console()
    if format_ == "text":
        warn_of_ends(folder, partial(say, console))
    operate.status(folder, out or folder / "run", format_, console)


def metrics(
    folder: FederationDir,
    out: FederationOut = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 = any free port.")
    ] = 9464,
) -> None:
    """Serve metrics of a federation for Prometheus on this machine, until Ctrl-C."""
    from fedgh.flower import operate

    with suppress(KeyboardInterrupt):
        operate.metrics(folder, out or folder / "run", port, partial(print, flush=True))


def stop(folder: FederationDir) -> None:
    """Stop a federation on this machine."""
    from fedgh.flower import operate

    print("stopped" if operate.stop(folder) else "nothing is running")
