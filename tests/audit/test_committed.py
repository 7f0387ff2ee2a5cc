"""What the document shows is what the committed audit found."""

from pathlib import Path

import pytest

from fedgh.audit.result import Audit
from fedgh.report.audit_sheets import overview
from fedgh.report.png import png

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("features", [64, 512])
def test_the_tables_of_second_moments_are_of_the_committed_audits(features: int) -> None:
    name = f"cifar10-fedgh-plus-{features}.json"
    found = Audit.model_validate_json((DOCS / "results" / "audit" / name).read_bytes())
    assert found.width == features
    table = overview(found).markdown().split("\n\n")[0]
    assert table in (DOCS / "audit.md").read_text(encoding="utf-8")


def test_the_table_and_the_pictures_are_of_the_committed_audit() -> None:
    folder = DOCS / "results" / "audit"
    found = Audit.model_validate_json((folder / "cifar10-hetero-fedgh.json").read_bytes())
    table = overview(found).markdown().split("\n\n")[0]
    assert table in (DOCS / "audit.md").read_text(encoding="utf-8")
    for name, sheet in found.pictures.items():
        made = png(sheet.height, sheet.width, sheet.channels, sheet.pixels)
        assert made == (folder / f"cifar10-{name}.png").read_bytes()
