"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from fedgh.choices import EngineName

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
RunArgument = Annotated[
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
FederationDir = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]
FederationOut = Annotated[Path | None, typer.Option(help="The run folder; else DIR/run.")]
