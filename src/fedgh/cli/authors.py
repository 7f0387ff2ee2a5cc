"""For authors of methods: `fedgh new-method`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def new_method(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the method and its file: my_method.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for both files; else this one.")
    ] = None,
) -> None:
    """Write a method of your own that runs as it is, and its test.

    In a checkout of fedgh it becomes one of the built-in methods.
    """
    from fedgh.methods.new import new_method
    from fedgh.report.terminal import say

    say(Console(), new_method(name, out).next_steps())
