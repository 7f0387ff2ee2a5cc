"""Commands for a client's own model: `fedgh flower predict` and `fedgh flower export`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.cli.helpers import export_into, show_export, show_predictions
from fedgh.cli.options import FileFormat, InputPaths, PredictionsFile

ClientDir = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The client's folder, from which it joins federations."),
]
RunName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The run, or the beginning of its name (default: newest)."),
]
Newest = Annotated[
    bool,
    typer.Option(
        "--newest", help="Use the newest state, also if the server may not have counted it."
    ),
]


def predict(
    folder: ClientDir,
    paths: InputPaths,
    csv: PredictionsFile = None,
    run: RunName = None,
    newest: Newest = False,
) -> None:
    """Classify images or arrays with the model that this client has trained."""
    from fedgh.flower.models import load_model
    from fedgh.report.terminal import say
    from fedgh.trained.predict import predict

    console = Console()
    with console.status("loading the model") as status:
        model = load_model(folder, run, newest=newest)
        status.update("predicting")
        table = predict(model.trained, paths)
    show_predictions(console, table, csv)
    say(console, model.origin)


def export(
    folder: ClientDir,
    format_: FileFormat,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write (default: in DIR/export).")
    ] = None,
    run: RunName = None,
    newest: Newest = False,
) -> None:
    """Write the model that this client has trained for other programs, and compare its outputs."""
    from fedgh.flower.models import load_model
    from fedgh.report.terminal import say

    console = Console()
    with console.status("loading the model") as status:
        model = load_model(folder, run, newest=newest)
        status.update("exporting")
        done = export_into(folder, model.trained, format_, out)
    show_export(console, done, without_data="its data have changed since the training")
    say(console, model.origin)
