"""Commands that keep a federation between machines going: `fedgh flower check`, `renew`."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedgh.choices import TextFormat
from fedgh.cli.options import FederationDir

if TYPE_CHECKING:
    from fedgh.flower.preflight import Finding

MARKS = {"ok": "OK     ", "warning": "WARNING", "failed": "FAILED "}


def check(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder that the operator gave you.")
    ] = Path(),
    server: Annotated[
        str | None,
        typer.Option(metavar="NAME:PORT", help="Address of the server (default: as in node.sh)."),
    ] = None,
    trial: Annotated[
        bool, typer.Option(help="Run the app in one round on trial; nothing is sent.")
    ] = True,
    format_: Annotated[
        TextFormat, typer.Option("--format", help="text for people, json for programs.")
    ] = "text",
) -> None:
    """Check as a client, before joining: server, certificate, clock, key, versions, data."""
    from fedgh.flower import preflight

    found = []
    for finding in preflight.check(folder.absolute(), server, trial=trial, say=_say):
        found.append(finding)
        if format_ == "text":
            _show(finding)
    failed = [finding for finding in found if finding.status == "failed"]
    if format_ == "json":
        print(json.dumps({"ok": not failed, "findings": [asdict(one) for one in found]}, indent=2))
    if failed:
        sys.exit(1)


def renew(
    folder: FederationDir,
    host: Annotated[
        list[str] | None,
        typer.Option(help="One more name at which clients reach the server; may be repeated."),
    ] = None,
    authority_key: Annotated[
        Path | None, typer.Option(help="Place of ca.key (default: DIR/server/ca.key).")
    ] = None,
    replace_authority: Annotated[
        bool,
        typer.Option(
            "--replace-authority",
            help="Make a new ca.key, because others may have read it; clients need ca.crt at once.",
        ),
    ] = False,
    secret: Annotated[
        bool, typer.Option("--secret", help="Also make a new superexec.secret.")
    ] = False,
) -> None:
    """Renew the server's certificate, and that of its authority when needed, as the operator."""
    from fedgh.flower.folder import FederationFolder
    from fedgh.flower.renewal import renew
    from fedgh.report.terminal import say

    federation = FederationFolder.open(folder)
    renewed = renew(
        federation,
        hosts=host,
        authority_key=authority_key,
        replace_authority=replace_authority,
        secret=secret,
    )
    console = Console()
    say(console, f"renewed {federation.server / 'server.pem'} and its key")
    if renewed.secret:
        say(console, f"renewed {federation.server / 'superexec.secret'}")
    if renewed.authority_key:
        say(console, "give all clients the new server/ca.crt now: until then they cannot connect")
    elif renewed.authority:
        say(console, "give all clients the new server/ca.crt, before the old one ends")
    if renewed.secret or renewed.authority_key:
        say(console, "restart the SuperLink, superexec and nginx, then run train.sh again")
    else:
        say(
            console,
            "reload nginx; training continues. Restart the SuperLink before "
            f"{renewed.old_end}, when its old certificate ends",
        )


def warn_of_ends(folder: Path, tell: Callable[[str], None]) -> None:
    """Tell of each certificate of a federation that ends soon."""
    from fedgh.flower.folder import FederationFolder
    from fedgh.flower.renewal import warnings

    server = FederationFolder.open(folder).server
    for text in warnings(server, f"fedgh flower renew {folder}"):
        tell(f"warning: {text}")


def _show(finding: "Finding") -> None:
    """Print a finding, and below it what to do next."""
    print(f"{MARKS[finding.status]} {finding.check:<13} {finding.text}", flush=True)
    if finding.advice:
        print(f"{'':21} -> {finding.advice}", flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
