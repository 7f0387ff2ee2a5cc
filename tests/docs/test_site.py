"""The site is built without a warning, needs nothing from elsewhere, and is searched offline."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from fedgh.methods import METHODS
from tests.docs.blocks import PAGES, ROOT
from tests.support.browser import headless, needs_browser
from tools.site.places import in_site

PATIENCE = 120  # seconds; a busy machine may need many for what takes one
LOADED = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)", re.DOTALL
)
"""What a browser fetches by itself; a link that somebody may follow is none of that."""

pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it: a warning is an error."""
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(out)))
    return out


def html(uri: str) -> str:
    return re.sub(r"(^|/)README\.md$", r"\1index.md", uri).removesuffix(".md") + ".html"


def test_every_document_is_a_page_that_can_be_reached(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in PAGES:
        place = html(in_site(page))
        assert (site / place).is_file(), page
        assert f'href="{place}"' in home, f"{page} is not in the navigation"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = LOADED.findall(page.read_text(encoding="utf-8"))
        assert not [url for url in fetched if re.match(r"(https?:)?//", url)], page
        for url in fetched if page.name != "404.html" else []:  # that one is for a server
            local = re.split(r"[#?]", url)[0]
            if not url.startswith("data:"):
                assert (page.parent / local).exists(), f"{page}: {url}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_run_folders_stay_at_home_but_what_is_linked_is_there(site: Path) -> None:
    assert not list(site.rglob("rounds.jsonl"))
    assert (site / "results/audit/cifar10-hetero-fedgh.json").is_file()
    assert (site / "files/benchmarks/results/latest.json").is_file()


def test_the_reference_is_filled_in(site: Path) -> None:
    python = (site / "reference/python.html").read_text(encoding="utf-8")
    assert 'id="fedgh.load"' in python
    assert "a named one or a TOML file" in python  # its docstring
    settings = (site / "reference/configuration.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in settings for name in METHODS)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with headless("browser") as driver:
        yield driver


@needs_browser
def test_the_search_works_from_a_folder(site: Path, browser: webdriver.Chrome) -> None:
    browser.get((site / "concepts.html").as_uri())
    browser.execute_script("document.querySelector('label[for=__search]').click()")
    browser.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys("header")
    found = WebDriverWait(browser, PATIENCE).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__item a")
    )
    assert any("concepts.html" in (link.get_attribute("href") or "") for link in found)
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
