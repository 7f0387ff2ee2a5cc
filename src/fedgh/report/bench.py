"""Benchmark numbers in the terminal, as they come."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedgh.bench.suite import Numbers, Section, measure


def bench(
    console: Console,
    sections: Sequence[Section],
    *,
    quick: bool,
    data_dir: Path | None = None,
    out: Path | None = None,
) -> Numbers:
    """Run the sections, print every number as it comes, and write all of them as JSON."""
    start = time.perf_counter()
    with console.status("starting") as status:

        def began(title: str) -> None:
            console.print(f"\n[bold]{title}[/]")
            status.update(title)

        def found(name: str, value: float) -> None:
            console.print(f"  {name:<44} {value:>12.4g}", highlight=False)

        numbers = measure(sections, quick=quick, data_dir=data_dir, began=began, found=found)
    numbers["seconds"] = time.perf_counter() - start
    console.print(
        f"\n{numbers['seconds']:.0f} s on {numbers['processor']}, data: {numbers['data']}"
    )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        console.print(f"written to {out}")
    return numbers


def verdicts(
    numbers: Numbers, at_least: Mapping[str, float], at_most: Mapping[str, float]
) -> Table:
    """Which bars are met."""
    table = Table("what", "measured", "bar", "")
    for bars, word in ((at_least, "at least"), (at_most, "at most")):
        for name, bar in bars.items():
            value = numbers[name]
            assert isinstance(value, float)
            met = value >= bar if word == "at least" else value <= bar
            table.add_row(
                name, f"{value:.4g}", f"{word} {bar:g}", "met" if met else "[red]missed[/]"
            )
    return table
