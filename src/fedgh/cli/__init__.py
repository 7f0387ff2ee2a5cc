"""The commands: each parses its arguments, calls the library and prints the result.

A command imports what it needs only when it runs, so that `fedgh --help` is fast: importing torch
alone takes over a second.
"""

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgh.cli import (
    authors,
    flower,
    flower_models,
    flower_upkeep,
    listing,
    models,
    reading,
    running,
    sweeps,
)
from fedgh.errors import ConfigError, FedghError
from fedgh.version import __version__


def _group(help_: str) -> typer.Typer:
    return typer.Typer(
        help=help_,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


app = _group("Federated learning for clients whose networks differ.")
COMMANDS = (
    *(running.run, running.resume, reading.report, reading.clients, models.predict, models.export),
    *(models.audit, models.forget, models.newcomer, reading.watch, sweeps.compare, sweeps.advise),
    *(sweeps.tune, sweeps.reproduce, running.partition, authors.new_method, listing.list_),
)
for command in COMMANDS:
    app.command(name=command.__name__.rstrip("_").replace("_", "-"))(command)
data_app = _group("Download public data sets.")
data_app.command()(listing.fetch)
app.add_typer(data_app, name="data")
flower_app = _group("Run a federation between machines with Flower.")
FLOWER_COMMANDS = (
    *(flower.init, flower.up, flower.join, flower.status, flower.metrics, flower.stop),
    *(flower_models.predict, flower_models.export),
    *(flower_upkeep.check, flower_upkeep.renew),
)
for flower_command in FLOWER_COMMANDS:
    flower_app.command()(flower_command)
app.add_typer(flower_app, name="flower")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Federated learning for clients whose networks differ."""


def main() -> None:
    """Run the command in `sys.argv`; the entry point of the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals without the characters of tables
    warnings.showwarning = _show_warning
    with errors_as_messages():
        sys.path.append(str(Path.cwd()))  # so that `my_module:my_extractor` is found
        app(standalone_mode=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the source line that caused it."""
    print(f"warning: {message}", file=sys.stderr)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Print errors that a user can correct without a traceback, and exit.

    The exit code is 2 for a ConfigError, otherwise 1.
    """
    try:
        yield
    except FedghError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except BrokenPipeError:  # the reader of the output has ended, as in `fedgh run | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # e.g. a full disk, or a folder that cannot be written
        hint = "check the path, its permissions and the free disk space"
        named = f"{error.filename}: {error.strerror}; {hint}"
        print(f"error: {named if error.filename else error}", file=sys.stderr)
        sys.exit(1)
