"""The tables of results in the README are those of docs/results."""

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


def pays_table() -> str:
    """What joining gained, a row per setting in which FedGH+ was run, as the README shows it."""
    with (ROOT / "docs/results/quick/pays.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = {
        "FedGH": "fedgh",
        "FedProto": "fedproto",
        "FedGH+, nothing shared": "fedgh_plus:statistics=own",
        "FedGH+": "fedgh_plus",
    }
    lines = [
        f"| twenty clients | alone | {' | '.join(columns)} | FedGH+ over all classes (alone) |",
        "|---|--:|" + "--:|" * (len(columns) + 1),
    ]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        found = {row["method"]: row for row in rows if row["setting"] == setting}
        alone, plus = found["standalone"], found["fedgh_plus"]
        if plus["s.e. over"].endswith("seeds"):
            cells = [setting, f"{float(alone['own data, %']):.1f}%"]
            cells += [gain_shown(found[method]) for method in columns.values()]
            whole, own = (f"{float(row['all classes, %']):.1f}%" for row in (plus, alone))
            lines.append(f"| {' | '.join(cells)} | {whole} ({own}) |")
    return "\n".join(lines)


def gain_shown(row: dict[str, str]) -> str:
    """A gain over several seeds with its standard error."""
    if not row["s.e. over"].endswith("seeds"):
        return "-"
    return f"{float(row['gain, own data']):+.1f} ± {float(row['± s.e., own data']):.1f}"


def test_what_joining_gains_comes_from_the_results() -> None:
    table = pays_table()
    assert table.count("\n") > 1, "no setting was run whole"
    for page in ("README.md", "docs/should-we-federate.md"):
        assert table in (ROOT / page).read_text(encoding="utf-8")
