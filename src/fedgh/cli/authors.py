"""The command for authors of methods: `fedgh new-method`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def new_method(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the method and of its file, e.g. my_method."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for both files (default: this one).")
    ] = None,
) -> None:
    """Write a new method that runs as it is, with its test, for you to change.

    In a checkout of fedgh it becomes a built-in method.
    """
    from fedgh.methods.new import new_method
    from fedgh.report.terminal import say

    say(Console(), new_method(name, out).next_steps())
