"""Commands for trained models: `fedgh predict`, `export`, `audit`, `forget`, `newcomer`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.cli.helpers import export_into, show_export, show_predictions
from fedgh.cli.options import (
    ClientName,
    FileFormat,
    InputPaths,
    PredictionsFile,
    Quiet,
    RunArgument,
    Trust,
)
from fedgh.defaults import IMAGE_SIZE, NEWCOMER_ROUNDS


def predict(
    run: RunArgument,
    paths: InputPaths,
    client: ClientName,
    csv: PredictionsFile = None,
    trust: Trust = False,
) -> None:
    """Classify images or arrays with a client's model."""
    from fedgh.trained.clients import TrainedFederation
    from fedgh.trained.predict import predict

    console = Console()
    with console.status("predicting"):
        table = predict(TrainedFederation.load(run, trust=trust).clients[client], paths)
    show_predictions(console, table, csv)


def export(
    run: RunArgument,
    client: ClientName,
    format_: FileFormat,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write (default: in RUN/export).")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a client's model for other programs, and compare its outputs with the original."""
    from fedgh.trained.clients import TrainedFederation

    console = Console()
    with console.status("exporting"):
        trained = TrainedFederation.load(run, data=True, trust=trust).clients[client]
        done = export_into(run, trained, format_, out)
    hint = "" if trust else ", or --trust was not given"
    show_export(console, done, without_data=f"its data are not here{hint}")


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with its checkpoint.")],
    client: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of the target client (default: the first that took part)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the attacks, not of the run.")] = 0,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Attack the uploads of a client, and report what they reveal about its samples."""
    from fedgh.audit import audit, result
    from fedgh.report.audit_sheets import overview
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.report.write import report_after
    from fedgh.runs.folder import RunFolder
    from fedgh.trust import how_far

    console = Console(quiet=quiet)
    folder = RunFolder(run)
    with console.status("") as status:
        found = audit.audit(folder, client, seed, status.update, trust=how_far(trust))
        path = result.write(folder, found)
        status.update("writing the report")
        line = report_after(folder, how_far(trust))
    table = overview(found)
    print_whole(console, sheet(table))
    say(
        console,
        f"{table.note}\n"
        "Uploads always show which classes a client has; noise does not hide it.\n"
        f"audit      {path}\n{line}",
    )


def forget(
    run: RunArgument,
    client: Annotated[int, typer.Option(min=0, help="Number of the client to remove.")],
    trust: Trust = False,
) -> None:
    """Remove a client from a run: replace the global header by one computed without it."""
    from fedgh.report.terminal import say
    from fedgh.trained.forget import forget

    console = Console()
    with console.status(f"removing client {client}"):
        done = forget(run, client, trust=trust)
    others = (
        "the other clients get the new header in their next round"
        if done.elsewhere
        else f"{done.refreshed} other clients got the new header"
    )
    say(console, f"removed    client {client} of {run}; {others}")


def newcomer(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    data: Annotated[
        Path,
        typer.Option(help="The newcomer's data: a folder of images by class, or an .npz file."),
    ],
    network: Annotated[
        str,
        typer.Option(
            help="The newcomer's network: one of `fedgh list models`, or package.module:function."
        ),
    ],
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of rounds for which the newcomer trains.")
    ] = NEWCOMER_ROUNDS,
    image_size: Annotated[
        int, typer.Option(min=1, help="Height and width in pixels to which images are scaled.")
    ] = IMAGE_SIZE,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the model and its results into this folder."),
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Train a newcomer with the global header of a run; measure its gain over training alone."""
    from fedgh.report.newcomer import curve, verdict
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.runs.folder import RunFolder
    from fedgh.trained import newcomer

    console = Console(quiet=quiet)
    folder = RunFolder.open(run)
    with console.status("training the newcomer") as status:
        found = newcomer.join(
            folder,
            newcomer.newcomer(folder, network, data, image_size, trust=trust),
            rounds,
            lambda round, *_: status.update(f"round {round} of {rounds}"),
            trust=trust,
        )
        files = newcomer.save(found, out) if out is not None else []
    print_whole(console, sheet(curve(found)))
    say(console, "\n".join([verdict(found), *(f"written    {file}" for file in files)]))
