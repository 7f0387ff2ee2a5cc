"""Links work in the repository, and are translated for the site (where MkDocs checks them)."""

import pytest

from tests.docs.blocks import PAGES, ROOT
from tools.site import links
from tools.site.places import in_site, linked, moved

TEXT = """
See [one](a.md#part), ![two](../pic.svg "A title"), [three](https://x.org/a.md), [four](#here).
```python
x = y[0](not_a_link.md)
```
[five](b/c.md)
"""


def test_links_are_found_outside_of_code() -> None:
    assert list(links.paths(TEXT)) == ["a.md", "../pic.svg", "b/c.md"]


def test_replacing_paths_keeps_anchors_and_all_other_text() -> None:
    changed = links.replaced(TEXT, str.upper)
    assert "[one](A.MD#part)" in changed
    assert '![two](../PIC.SVG "A title")' in changed
    assert changed.lower() == TEXT.lower()
    assert "not_a_link.md" in changed


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("docs/results/README.md", "results/README.md"),
        ("SECURITY.md", "project/security.md"),
        ("docs/notebooks/tour.ipynb", "notebooks/tour.md"),
        ("benchmarks/results/avx2-2-cores.json", "files/benchmarks/results/avx2-2-cores.json"),
    ],
)
def test_files_of_the_repository_have_a_path_in_the_site(path: str, uri: str) -> None:
    assert in_site(path) == uri


def test_links_are_translated_for_the_path_of_the_page() -> None:
    text = "[a](docs/audit.md#x) [b](docs/images/report.png) [c](CONTRIBUTING.md)"
    assert moved("README.md", "project/readme.md", text) == (
        "[a](../audit.md#x) [b](../images/report.png) [c](contributing.md)"
    )
    assert moved("docs/deploy.md", "deploy.md", "[s](../SECURITY.md)") == "[s](project/security.md)"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [path for path in linked(page, text) if not (ROOT / path).is_file()]
    assert not missing
