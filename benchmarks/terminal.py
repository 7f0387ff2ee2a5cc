"""Benchmark numbers in the terminal, as they come."""

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
    """Run the sections, print every number as it comes, and write all of them as JSON.

    What was measured before an interruption is written beside it, as NAME.partial.json.
    """
    if out is not None:
        _check_writable(out)
    start = time.perf_counter()
    so_far: Numbers = {}
    with console.status("starting") as status:

        def began(title: str) -> None:
            console.print(f"\n[bold]{title}[/]")
            status.update(title)

        def found(name: str, value: float) -> None:
            console.print(f"  {name:<44} {value:>12.4g}", highlight=False)
            so_far[name] = value

        try:
            numbers = measure(sections, quick=quick, data_dir=data_dir, began=began, found=found)
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
        raise ConfigError(f"--out {out}: this file cannot be written")


def _write(path: Path, numbers: Numbers) -> None:
    write_atomic(path, json.dumps(numbers, indent=2).encode() + b"\n")


def verdicts(
    numbers: Numbers, at_least: Mapping[str, float], at_most: Mapping[str, float]
) -> Table:
    """Which bars are met."""
    table = Table("what", "measured", "bar", "")
    for bars, word in ((at_least, "at least"), (at_most, "at most")):
        for name, bar in bars.items():
            value = numbers.get(name)
            if not isinstance(value, float):
                table.add_row(name, "-", f"{word} {bar:g}", "not measured")
                continue
            met = value >= bar if word == "at least" else value <= bar
            table.add_row(
                name, f"{value:.4g}", f"{word} {bar:g}", "met" if met else "[red]missed[/]"
            )
    return table
