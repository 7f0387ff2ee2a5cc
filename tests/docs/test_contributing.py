"""The paths in the guide for contributors exist, and a release names one version everywhere."""

import re
import tomllib

from tests.docs.blocks import ROOT


def test_paths_in_the_table_of_changes_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Where to change what")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    named = {
        path
        for row in rows
        for path in re.findall(r"`([a-z_/]+(?:\.py)?)`", row)
        if "/" in path or path.endswith(".py") or row.split(" | ")[1] == f"`{path}`"
    }
    assert len(named) > 20
    roots = (ROOT / "src" / "fedgh", ROOT)
    assert {path for path in named if not any((root / path).exists() for root in roots)} == set()


def test_the_citation_and_the_changelog_name_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == version
