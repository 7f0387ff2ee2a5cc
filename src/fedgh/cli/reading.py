"""Commands that show runs: `fedgh report`, `clients`, `watch`."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.choices import FigureFormat
from fedgh.cli.options import (
    Trust,
)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="File to write (default: RUN/report.html; report.html for several runs).",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write all charts into this folder.")
    ] = None,
    format_: Annotated[
        FigureFormat, typer.Option("--format", help="Format of these charts.")
    ] = "svg",
    trust: Trust = False,
) -> None:
    """Write one HTML page about a run or a comparison of several; it works offline."""
    from fedgh.report.terminal import say
    from fedgh.report.write import write_page
    from fedgh.trust import how_far

    console = Console()
    with console.status("writing the report"):
        page = write_page(runs, out, figures, format_, trust=how_far(trust))
    say(console, f"report     {page}")
    if figures is not None:
        say(console, f"figures    {figures}")


def clients(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Show the network, classes, samples and accuracy of each client of a run."""
    from fedgh.report.clients import client_sheet
    from fedgh.report.terminal import print_whole, say, sheet
    from fedgh.runs.read import name_runs

    console = Console()
    (named,) = name_runs([run])
    table = client_sheet(named)
    print_whole(console, sheet(table))
    if table.note:
        say(console, table.note)


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server; 0 = any free port.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Show the report of a running run in the browser, until Ctrl-C."""
    from fedgh.extras import need_report

    need_report()
    from fedgh.report.live import LiveServer
    from fedgh.runs.read import name_runs

    name_runs([run])  # so that an error is printed here, not in the browser
    with LiveServer(run, port) as server, suppress(KeyboardInterrupt):
        print(f"{run} is shown at {server.url} until Ctrl-C", flush=True)
        if browser:
            webbrowser.open(server.url)
        server.serve_forever()
