"""The results in docs/results are those of the run folders beside them."""

from pathlib import Path

import pytest

from fedgh.choices import BudgetName
from fedgh.report import document
from fedgh.studies.reproduce import Reproduction, Result, collect
from fedgh.studies.study import studies

RESULTS = Path(__file__).parents[2] / "docs" / "results"
COMMITTED = [
    (folder.name, path.stem)
    for folder in RESULTS.iterdir()
    if folder.is_dir()
    for path in sorted(folder.glob("*.md"))
    if path.stem in studies()
]


def collect_again(budget: BudgetName, name: str, text: str) -> Result:
    """Return the result of the committed runs, for the command in the committed text."""
    (line,) = (line for line in text.splitlines() if line.startswith("- command: "))
    arguments = line.removeprefix("- command: ").split()
    assert arguments[2:5] == [name, "--budget", budget]
    options = dict(zip(arguments[3::2], arguments[4::2], strict=True))
    request = Reproduction(name, budget, [int(seed) for seed in options["--seeds"].split(",")])
    reasons = document.read_reasons(RESULTS / budget / f"{name}.missing.json")
    return collect(request, RESULTS, reasons)


@pytest.mark.parametrize(("budget", "name"), COMMITTED)
def test_every_committed_table_equals_that_of_its_runs(
    budget: BudgetName, name: str, tmp_path: Path
) -> None:
    text = (RESULTS / budget / f"{name}.md").read_text(encoding="utf-8")
    for path in document.write(collect_again(budget, name, text), tmp_path):
        if path.suffix != ".html":
            committed = (RESULTS / budget / path.name).read_text(encoding="utf-8")
            assert path.read_text(encoding="utf-8") == committed, path.name
    for picture in tmp_path.glob("figures/*"):
        assert (RESULTS / budget / "figures" / picture.name).exists()


def test_the_main_studies_are_committed() -> None:
    assert {name for _, name in COMMITTED} >= {"table-hetero", "models"}
