"""Benchmark numbers in the terminal, printed while they are measured."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.suite import Numbers, Section, measure
from fedgh.errors import ConfigError
from fedgh.files import make_folder, write_atomic


def bench(
    console: Console,
    sections: Sequence[Section],
    *,
    quick: bool,
    data_dir: Path | None = None,
    out: Path | None = None,
) -> Numbers:
    """Run the sections, print every number when it is measured, and write all to `out` as JSON.

    After an interruption, the numbers measured until then are in NAME.partial.json.
    """
    if out is not None:
        _check_writable(out)
    start = time.perf_counter()
    so_far: Numbers = {}
    with console.status("starting") as status:

        def on_section(title: str) -> None:
            console.print(f"\n[bold]{title}[/]")
            status.update(title)

        def on_number(name: str, value: float) -> None:
            console.print(f"  {name:<44} {value:>12.4g}", highlight=False)
            so_far[name] = value

        try:
            numbers = measure(
                sections,
                quick=quick,
                data_dir=data_dir,
                on_section=on_section,
                on_number=on_number,
            )
        except BaseException:
            if out is not None and so_far:
                _write(out.with_suffix(".partial.json"), so_far)
            raise
    numbers["seconds"] = time.perf_counter() - start
    console.print(
        f"\n{numbers['seconds']:.0f} s on {numbers['processor']}, data: {numbers['data']}"
    )
    if out is not None:
        _write(out, numbers)
        console.print(f"written to {out}")
    return numbers


def _check_writable(out: Path) -> None:
    try:
        make_folder(out.parent)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error}") from None
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigError(f"--out {out}: this file cannot be written; choose another path")


def _write(path: Path, numbers: Numbers) -> None:
    write_atomic(path, json.dumps(numbers, indent=2).encode() + b"\n")


def verdicts(
    numbers: Numbers, at_least: Mapping[str, float], at_most: Mapping[str, float]
) -> Table:
    """Return a table of the targets, and whether each is met."""
    table = Table("number", "measured", "target", "")
    for targets, relation in ((at_least, "at least"), (at_most, "at most")):
        for name, target in targets.items():
            value = numbers.get(name)
            if not isinstance(value, float):
                table.add_row(name, "-", f"{relation} {target:g}", "not measured")
                continue
            met = value >= target if relation == "at least" else value <= target
            table.add_row(
                name, f"{value:.4g}", f"{relation} {target:g}", "met" if met else "[red]missed[/]"
            )
    return table
