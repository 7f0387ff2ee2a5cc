"""Arguments and options shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer

from fedgh.choices import EngineName

Name = Annotated[
    str, typer.Argument(metavar="[NAME|FILE.toml]", help="A named experiment or a TOML file.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets (default: $FEDGH_DATA, or the user cache)."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Seeds = Annotated[str, typer.Option(metavar="0,1,2", help="Seeds to average over.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Number of rounds of every run.")]
SweepOut = Annotated[
    Path | None, typer.Option(help="Folder for the runs; finished runs in it are not repeated.")
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder with its checkpoint.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import the code and open the files that the run names: only for your own runs.",
    ),
]
ClientName = Annotated[str, typer.Option(metavar="K", help="Number or name of the client.")]
Engine = Annotated[EngineName | None, typer.Option(help="The engine that runs the clients.")]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Number of worker processes; 0 = one per core.")
]
FederationDir = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]
FederationOut = Annotated[Path | None, typer.Option(help="The run folder (default: DIR/run).")]
