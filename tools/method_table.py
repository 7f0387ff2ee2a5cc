"""Write the tables of docs/methods.md: facts from the code, bytes and time from measurements.

    python -m tools.method_table             # write the tables
    python -m tools.method_table --measure   # measure times before; the machine should be idle
    python -m tools.method_table --measure fedmd dsfl   # only of these, beside training alone

Bytes are those of comparisons on digits. Times are round times relative to training alone, by
the benchmark. Both are in docs/results/methods.
"""

import csv
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.load import load_by_others
from benchmarks.methods import all_methods
from benchmarks.suite import measure
from fedgh.formats import human_bytes
from fedgh.methods import METHODS
from fedgh.methods.overview import MethodFacts, built_in_methods

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
RESULTS = ROOT / "docs" / "results" / "methods"
COMPARISONS = (
    "different-networks.csv",
    "same-network.csv",
    "parts-of-cnn1.csv",
    "widths.csv",
    "public-data.csv",
)
TIMES = RESULTS / "times.json"
PUBLIC = {"none": "no", "server": "on the server", "all": "on all clients"}


def measure_times(names: Sequence[str]) -> None:
    """Measure the round times of methods, and write them with machine and versions."""
    section = partial(all_methods, names=names or METHODS)
    numbers = measure(
        [section],
        load=load_by_others(),
        quick=True,
        on_number=lambda name, value: print(name, value),
    )
    known = json.loads(TIMES.read_text(encoding="utf-8")) if names else {}
    TIMES.write_text(json.dumps(known | numbers, indent=1) + "\n", encoding="utf-8")


def bytes_sent() -> dict[str, str]:
    """Return the bytes per client and round of each method."""
    sent: dict[str, str] = {}
    for file in COMPARISONS:
        with (RESULTS / file).open(encoding="utf-8") as text:
            for row in csv.DictReader(text):
                name = row["label"].partition(":")[0]
                sent.setdefault(name, human_bytes(float(row["bytes_per_client_round"] or 0)))
    return sent


def methods_table() -> str:
    """Return the table of all methods, by family."""
    lines = [
        "| family | method | upload | download | bytes | time | networks | reveals | public data |",
        "|---|---|---|---|--:|--:|---|---|---|",
    ]
    sent, times = bytes_sent(), json.loads(TIMES.read_text(encoding="utf-8"))
    for family, members in built_in_methods().items():
        for number, facts in enumerate(members):
            time = times.get(f"method_{facts.name}_over_standalone")
            cells = [family if number == 0 else "", f"`{facts.name}`", facts.up, facts.down]
            cells += [sent.get(facts.name, "-"), "-" if time is None else f"{time:.1f}"]
            cells += [facts.networks, facts.shares, PUBLIC[facts.public_for]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def settings_table() -> str:
    """Return the table of the settings of each method and their defaults."""
    lines = ["| method | settings (default) |", "|---|---|"]
    for members in built_in_methods().values():
        lines += [f"| `{facts.name}` | {_settings(facts)} |" for facts in members]
    return "\n".join(lines)


def _settings(facts: MethodFacts) -> str:
    shown = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in facts.settings.items()
    }
    return (
        ", ".join(
            f"`{key}`" if value == "" else f"`{key}` ({value})" for key, value in shown.items()
        )
        or "none"
    )


def updated(page: str) -> str:
    """Return the page with both tables put between their marks."""
    for name, table in (("methods", methods_table()), ("settings", settings_table())):
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(start)
        page = before + start + table + "\n" + end + rest.partition(end)[2]
    return page


def main() -> None:
    """Write the tables into the page."""
    if "--measure" in sys.argv:
        measure_times(sys.argv[sys.argv.index("--measure") + 1 :])
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
