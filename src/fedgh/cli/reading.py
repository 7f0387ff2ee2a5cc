"""Commands that show runs: `fedgh report`, `clients`, `watch`."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgh.choices import ReportFormat, TableFormat
from fedgh.cli.options import (
    Trust,
)
from fedgh.errors import ConfigError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Run folders, or one folder of `fedgh compare`, `tune` or `reproduce`.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write (default: FOLDER/report.html; report.html for several runs).",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write all charts into this folder.")
    ] = None,
    format_: Annotated[
        ReportFormat,
        typer.Option(
            "--format",
            help="svg, png, pdf: format of these charts. latex, markdown, csv: print the table of "
            "a comparison instead of writing a page.",
        ),
    ] = "svg",
    trust: Trust = False,
) -> None:
    """Write one HTML page about runs or a comparison, or print its table; nothing runs again."""
    from fedgh.report.terminal import say
    from fedgh.report.write import write_page
    from fedgh.trust import how_far

    console = Console()
    if format_ in ("latex", "markdown", "csv"):
        _print_table(runs, format_, out, figures, trust)
        return
    with console.status("writing the report"):
        page = write_page(runs, out, figures, format_, trust=how_far(trust))
    say(console, f"report     {page}")
    if figures is not None:
        say(console, f"figures    {figures}")


def _print_table(
    folders: list[Path], kind: TableFormat, out: Path | None, figures: Path | None, trust: bool
) -> None:
    from fedgh.files import make_folder, write_atomic
    from fedgh.report.printed import printed

    if figures is not None:
        raise ConfigError(f"--format {kind} prints a table; charts are svg, png or pdf")
    if len(folders) > 1:
        raise ConfigError(f"--format {kind} prints the table of one comparison; name one folder")
    text = printed(folders[0], kind, trust)
    if out is None:
        print(text, end="")
    else:
        make_folder(out.parent)
        write_atomic(out, text.encode())


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
