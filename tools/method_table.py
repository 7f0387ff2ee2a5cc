"""Write the tables of docs/methods.md: facts from the code, and bytes and time of measured runs.

    python -m tools.method_table

The runs are those of two comparisons on digits, in docs/results/methods-digits.
"""

import csv
from pathlib import Path

from fedgh.formats import human_bytes
from fedgh.methods.overview import MethodFacts, built_in_methods

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
RUNS = ROOT / "docs" / "results" / "methods-digits"
COMPARISONS = {"any": "different-networks.csv", "same": "same-network.csv"}
PUBLIC = {"none": "no", "server": "on the server", "all": "on all clients"}


def measured() -> dict[str, tuple[str, str]]:
    """Return bytes per client and round and relative time of each method that was run."""
    found: dict[str, tuple[str, str]] = {}
    for file in COMPARISONS.values():
        with (RUNS / file).open(encoding="utf-8") as text:
            rows = {row["label"]: row for row in csv.DictReader(text)}
        alone = float(rows["standalone"]["seconds"])
        for label, row in rows.items():
            name = label.partition(":")[0]
            mark = "¹" if label != name else ""
            sent = human_bytes(float(row["bytes_per_client_round"] or 0))
            times = f"{float(row['seconds']) / alone:.1f}{mark}"
            found.setdefault(name, (sent, times))
    return found


def methods_table() -> str:
    """Return the table of all methods, by family."""
    lines = [
        "| family | method | upload | download | bytes | time | networks | reveals | public data |",
        "|---|---|---|---|--:|--:|---|---|---|",
    ]
    runs = measured()
    for family, members in built_in_methods().items():
        for number, facts in enumerate(members):
            sent, time = runs.get(facts.name, ("-", "-"))
            cells = [family if number == 0 else "", f"`{facts.name}`", facts.up, facts.down]
            cells += [sent, time, facts.networks, facts.shares, PUBLIC[facts.public_for]]
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
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
