"""Benchmark numbers in the terminal, printed while they are measured."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.compare import Loss, losses
from benchmarks.load import LIMIT, highest, is_too_high
from benchmarks.suite import Numbers, Section, measure
from fedgh.errors import ConfigError
from fedgh.files import make_folder, write_atomic


def bench(
    console: Console,
    sections: Sequence[Section],
    *,
    quick: bool,
    load: Callable[[], float | None],
    data_dir: Path | None = None,
    out: Path | None = None,
) -> Numbers:
    """Run the sections, and print every number when it is measured.

    `out` is the file that the numbers will be written to. After an interruption, the numbers
    measured until then are in NAME.partial.json.
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
            note = "  [red]busy[/]" if is_too_high(name, value) else ""
            console.print(f"  {name:<44} {value:>12.4g}{note}", highlight=False)
            so_far[name] = value

        try:
            numbers = measure(
                sections,
                quick=quick,
                load=load,
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
        f"\n{numbers['seconds']:.0f} s on {numbers['processor']} ({numbers['instruction_set']}), "
        f"{numbers['cores']} cores, {numbers['memory_gib']:.0f} GiB, data: {numbers['data']}"
    )
    return numbers


def conclude(console: Console, numbers: Numbers, stored: Numbers, out: Path) -> int:
    """Write a result to `out` and return 0, or 1 if numbers are worse than the stored ones.

    The numbers of a busy machine or of a quick benchmark are not a result: they are not written.
    Return 1 for a busy machine.
    """
    busy = highest(numbers) > LIMIT
    reasons = ["the benchmark was a quick one"] if numbers["quick"] else []
    if busy:
        reasons.append(
            f"others used {highest(numbers):.0%} of the cores (the limit is {LIMIT:.0%})"
        )
    if reasons:
        console.print(
            f"[red]This is not a result[/]: {', and '.join(reasons)}. Nothing is written."
        )
        return int(busy)
    lost = losses(stored, numbers)
    if lost:
        console.print(_losses(lost))
    _write(out, numbers)
    console.print(f"written to {out}")
    return int(bool(lost))


def _losses(lost: Sequence[Loss]) -> Table:
    table = Table("number", "before", "now", "worse by", title="worse than the stored result")
    for loss in lost:
        table.add_row(
            loss.name, f"{loss.before:.4g}", f"{loss.now:.4g}", f"[red]{loss.share:.0%}[/]"
        )
    return table


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
