"""The numbers in the README and in the documents are those of docs/results."""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def paper_table() -> str:
    """Return the accuracies of table-hetero, a row per method, as in docs/reproduce.md."""
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


def test_the_table_beside_the_paper_comes_from_the_results() -> None:
    assert paper_table() in (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")


def pays_table() -> str:
    """Return the gains of FedGH+, a row per setting with several seeds."""
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
    """Return a gain over several seeds with its standard error."""
    if not row["s.e. over"].endswith("seeds"):
        return "-"
    return f"{float(row['gain, own data']):+.1f} ± {float(row['± s.e., own data']):.1f}"


def test_the_table_of_gains_comes_from_the_results() -> None:
    table = pays_table()
    assert table.count("\n") > 1, "no setting was run whole"
    assert table in (ROOT / "docs/should-we-federate.md").read_text(encoding="utf-8")


def test_the_readme_quotes_the_smallest_and_the_largest_gain() -> None:
    rows = [row for row in pays_table().splitlines() if "50 samples" in row or "200 samples" in row]
    gains = [float(re.findall(r"\+([\d.]+) ±", row)[-1]) for row in rows]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"gains {min(gains)} to {max(gains)} points" in readme
    assert len(gains) == 12, "the README says twelve settings"
