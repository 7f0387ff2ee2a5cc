"""The tables and pictures in docs/audit.md agree with the committed results of audits."""

from pathlib import Path

import pytest

from fedgh.audit.result import Audit
from fedgh.report.audit_sheets import overview
from fedgh.report.png import png

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("features", [64, 512])
def test_the_document_has_the_tables_of_the_committed_audits_of_moments(features: int) -> None:
    name = f"cifar10-fedgh-plus-{features}.json"
    audited = Audit.model_validate_json((DOCS / "results" / "audit" / name).read_bytes())
    assert audited.width == features
    table = overview(audited).markdown().split("\n\n")[0]
    assert table in (DOCS / "audit.md").read_text(encoding="utf-8")


def test_the_document_has_the_table_and_pictures_of_the_committed_audit_of_class_means() -> None:
    folder = DOCS / "results" / "audit"
    audited = Audit.model_validate_json((folder / "cifar10-hetero-fedgh.json").read_bytes())
    table = overview(audited).markdown().split("\n\n")[0]
    assert table in (DOCS / "audit.md").read_text(encoding="utf-8")
    for name, sheet in audited.pictures.items():
        content = png(sheet.height, sheet.width, sheet.channels, sheet.pixels)
        assert content == (folder / f"cifar10-{name}.png").read_bytes()
