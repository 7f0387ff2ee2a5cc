"""The site is built without a warning, loads nothing from other sites, and has offline search."""

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

TIMEOUT = 120  # seconds; far more than needed, because the machine may be busy
LOADED = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)", re.DOTALL
)
"""Addresses that a browser loads with a page; links that a reader may follow are not among them."""

pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, with warnings as errors."""
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(out)))
    return out


def html(uri: str) -> str:
    return re.sub(r"(^|/)README\.md$", r"\1index.md", uri).removesuffix(".md") + ".html"


def test_every_document_is_a_page_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in PAGES:
        file = html(in_site(page))
        assert (site / file).is_file(), page
        assert f'href="{file}"' in home, f"{page} is not in the navigation"


def test_the_navigation_names_each_page_once(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    sidebar = home.partition("md-nav--primary")[2].partition("md-sidebar--secondary")[0]
    entries = re.findall(
        r'<a href="([^"#]+)" class="md-nav__link[^"]*">(.*?)</a>', sidebar, re.DOTALL
    )
    pages = [page for page, _ in entries]
    names = [re.sub(r"(<[^>]*>|\s)+", " ", name).strip() for _, name in entries]
    assert len(pages) > 30
    assert sorted(pages) == sorted(set(pages))
    assert sorted(names) == sorted(set(names))


def test_no_page_loads_anything_from_another_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = LOADED.findall(page.read_text(encoding="utf-8"))
        assert not [url for url in fetched if re.match(r"(https?:)?//", url)], page
        for url in (
            fetched if page.name != "404.html" else []
        ):  # it has absolute paths, for a server
            local = re.split(r"[#?]", url)[0]
            if not url.startswith("data:"):
                assert (page.parent / local).exists(), f"{page}: {url}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_site_has_linked_files_but_no_run_folders(site: Path) -> None:
    assert not list(site.rglob("rounds.jsonl"))
    assert (site / "results/audit/cifar10-hetero-fedgh.json").is_file()
    assert (site / "files/benchmarks/results/amd-epyc-avx512-2-cores.json").is_file()


def test_the_reference_pages_have_their_content(site: Path) -> None:
    python = (site / "reference/python.html").read_text(encoding="utf-8")
    assert 'id="fedgh.load"' in python
    assert "by name or from a TOML file" in python  # its docstring
    settings = (site / "reference/configuration.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in settings for name in METHODS)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with headless("browser") as driver:
        yield driver


@needs_browser
def test_the_search_works_without_a_server(site: Path, browser: webdriver.Chrome) -> None:
    browser.get((site / "concepts.html").as_uri())
    browser.execute_script("document.querySelector('label[for=__search]').click()")
    browser.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys(
        "accuracy and global accuracy"
    )
    results = WebDriverWait(browser, TIMEOUT).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__item a")
    )
    assert any("concepts.html" in (link.get_attribute("href") or "") for link in results)
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
