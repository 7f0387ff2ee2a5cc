"""Arguments and options shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer

from fedgh.choices import EngineName, ExportFormat

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
InputPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Images, folders of images, .npy files, or .npz files with an array x.",
    ),
]
PredictionsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the predictions to this file.")
]
FileFormat = Annotated[ExportFormat, typer.Option("--format", help="Format of the file.")]
Engine = Annotated[EngineName | None, typer.Option(help="The engine that runs the clients.")]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Number of worker processes; 0 = one per core.")
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of runs at the same time; each has its share of the cores, or one GPU.",
    ),
]
NoRun = Annotated[bool, typer.Option("--no-run", help="Run nothing; show the finished runs.")]
FederationDir = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]
FederationOut = Annotated[Path | None, typer.Option(help="The run folder (default: DIR/run).")]
