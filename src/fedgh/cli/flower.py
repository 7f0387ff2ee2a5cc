"""Commands for federations between machines: `fedgh flower ...`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.cli.helpers import show_result
from fedgh.cli.options import (
    DataDir,
    FederationDir,
    FederationOut,
    Name,
    Quiet,
    Set,
)


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


def up(folder: FederationDir, out: FederationOut = None, quiet: Quiet = False) -> None:
    """Run a federation on this machine, with TLS and keys; a stopped run is resumed."""
    from fedgh.flower import operate

    console = Console(quiet=quiet)
    run = out or folder / "run"
    try:
        finished = operate.up(folder, run, console)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command resumes {run}", file=sys.stderr)
        sys.exit(130)
    show_result(console, finished)


def join(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder that the operator gave you.")
    ] = Path(),
) -> None:
    """Take part in a federation as a client, until Ctrl-C."""
    from fedgh.flower import node

    try:
        node.join(folder, print)
    except KeyboardInterrupt:
        print("left the federation; the same command joins it again", file=sys.stderr)
        sys.exit(130)


def status(folder: FederationDir, out: FederationOut = None) -> None:
    """Show the running processes of a federation and the progress of its run."""
    from fedgh.flower import operate

    operate.status(folder, out or folder / "run", Console())


def stop(folder: FederationDir) -> None:
    """Stop a federation on this machine."""
    from fedgh.flower import operate

    print("stopped" if operate.stop(folder) else "nothing is running")
