"""The table of results in the README is that of docs/results."""

import csv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def readme_table() -> str:
    """The accuracies of table-hetero, a row per method, as the README shows them."""
    with (ROOT / "docs/results/quick/table-hetero.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cells: dict[str, list[str]] = {}
    for row in rows:
        ours = row["ours, %"]
        shown = f"{float(ours):.2f}" if ours[0].isdigit() else ours
        paper = f"{float(row['paper, %']):.2f}" if row["paper, %"] else "-"
        cells.setdefault(row["method"], []).extend([paper, shown])
    lines = [
        "| accuracy, % | CIFAR-10, paper | ours | CIFAR-100, paper | ours |",
        "|---|--:|--:|--:|--:|",
        *(f"| {method} | {' | '.join(numbers)} |" for method, numbers in cells.items()),
    ]
    return "\n".join(lines)


def test_the_table_of_the_readme_comes_from_the_results() -> None:
    assert readme_table() in (ROOT / "README.md").read_text(encoding="utf-8")
