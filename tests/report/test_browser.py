"""The page in a real browser: charts, offline use, sorting, colour schemes, live updates."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from fedgh.report import study
from fedgh.report.live import LiveServer
from fedgh.report.write import write_page
from fedgh.studies.reproduce import Reproduction, collect
from tests.report.parts import HOSTILE, cut
from tests.support.browser import headless, needs_browser

TIMEOUT = 120  # seconds; far more than needed, because the machine may be busy

pytestmark = [needs_browser, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with headless("browser", "performance") as driver:
        yield driver


@pytest.fixture(scope="module")
def file(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about both runs."""
    return write_page(folders, tmp_path_factory.mktemp("page") / "report.html")


def wait_for(browser: webdriver.Chrome, script: str) -> Any:
    return WebDriverWait(browser, TIMEOUT).until(lambda b: b.execute_script(f"return {script}"))


def show(browser: webdriver.Chrome, url: str, scheme: str = "light", width: int = 1200) -> None:
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    browser.set_window_size(width, 900)
    browser.get("about:blank")  # otherwise a live page would continue to send requests
    for log in ("browser", "performance"):
        browser.get_log(log)  # discard entries of earlier pages
    browser.get(url)
    wait_for(browser, f"document.body.dataset.drawn === '{scheme}'")


def console_messages(browser: webdriver.Chrome) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def requests(browser: webdriver.Chrome) -> set[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }


EMPTY_CHARTS = """[...document.querySelectorAll('figure')].filter(figure =>
        !figure.querySelector('svg .mark-symbol path, svg .mark-line path, svg .mark-rect path')
    ).map(figure => figure.textContent)"""


def test_every_chart_is_drawn_offline_and_without_console_messages(
    browser: webdriver.Chrome, file: Path
) -> None:
    show(browser, file.as_uri())
    assert browser.execute_script(f"return {EMPTY_CHARTS}") == []
    assert (
        len(browser.find_elements(By.CSS_SELECTOR, "figure [role=graphics-document][aria-label]"))
        > 8
    )
    assert console_messages(browser) == []
    assert {url for url in requests(browser) if not url.startswith("data:")} == {file.as_uri()}
    assert HOSTILE in browser.find_element(By.TAG_NAME, "main").text


def test_a_table_is_sorted_by_mouse_and_keyboard(browser: webdriver.Chrome, file: Path) -> None:
    show(browser, file.as_uri())
    table = browser.find_element(By.CSS_SELECTOR, "#summary table")

    def first_column() -> list[str]:
        return [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "tbody td:first-child")]

    header = table.find_element(By.CSS_SELECTOR, "th")
    assert first_column() == ["fedgh", "standalone"]
    header.find_element(By.TAG_NAME, "button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    header.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert header.get_attribute("aria-sort") == "descending"
    assert first_column() == ["standalone", "fedgh"]
    sent = table.find_elements(By.TAG_NAME, "th")[8]
    sent.find_element(By.TAG_NAME, "button").click()
    assert (header.get_attribute("aria-sort"), sent.get_attribute("aria-sort")) == (
        "none",
        "ascending",
    )
    assert first_column() == ["standalone", "fedgh"]  # 0 B, some KB


def test_page_and_charts_follow_the_colour_scheme(browser: webdriver.Chrome, file: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        show(browser, file.as_uri(), scheme)
        script = """[getComputedStyle(document.body).backgroundColor,
            document.querySelector('svg .role-axis-label text').getAttribute('fill')]"""
        colours[scheme] = browser.execute_script(f"return {script}")
        assert console_messages(browser) == []
    assert colours["light"][0] != colours["dark"][0]
    assert colours["light"][1] != colours["dark"][1]
    media = [{"name": "prefers-color-scheme", "value": "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    wait_for(browser, "document.body.dataset.drawn === 'light'")  # a change while the page is open


def test_a_narrow_window_needs_no_sideways_scrolling(browser: webdriver.Chrome, file: Path) -> None:
    show(browser, file.as_uri(), width=500)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(f"return {overflow}") == 0


def test_a_live_page_shows_a_new_round(
    browser: webdriver.Chrome, folders: list[Path], tmp_path: Path
) -> None:
    run = cut(folders[0], tmp_path / "run", 0)
    lines = (folders[0] / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    with LiveServer(run) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            show(browser, server.url)
            status = "document.getElementById('status').textContent"
            wait_for(browser, f"{status}.includes('no round is complete yet')")
            browser.find_element(By.CSS_SELECTOR, "summary").click()
            (run / "rounds.jsonl").write_bytes(b"".join(lines[:2]))
            wait_for(browser, f"{status}.includes('round 2 of 3 is done')")
            points = (
                "document.querySelectorAll('[data-chart=accuracy-over-rounds] .mark-symbol path')"
            )
            wait_for(browser, f"{points}.length === 2")
            assert browser.execute_script("return document.querySelector('details').open")
            (run / "rounds.jsonl").write_bytes(b"".join(lines))
            shutil.copy(folders[0] / "summary.json", run)
            wait_for(browser, f"{status}.includes('finished after round 3')")
            wait_for(browser, f"{points}.length === 3")
            assert console_messages(browser) == []
            assert all(url.startswith((server.url, "data:")) for url in requests(browser))
        finally:
            server.shutdown()
            thread.join(TIMEOUT)
    wait_for(browser, f"{status}.includes('No connection')")


OVERLAPS = """[...document.querySelectorAll('[data-chart]')].flatMap(chart => {
    const texts = [...chart.querySelectorAll('svg text')]
        .filter(text => text.textContent.trim() && Number(text.getAttribute('opacity') ?? 1) > 0)
        .filter(text => !/rotate\\((-45|315)/.test(text.getAttribute('transform')))
        .map(text => [text.textContent, text.getBoundingClientRect()]);
    return texts.flatMap(([one, a], place) => texts.slice(0, place)
        .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
        .map(([other]) => `${chart.dataset.chart}: ${other} / ${one}`));
})"""
"""Pairs of labels that overlap by more than the rounding of their boxes.

The box of a slanted label is larger than its text, so slanted labels are left out.
"""


def with_labels(sweep: Path, to: Path, copies: int) -> Path:
    """Return a copy of a comparison in which each run has this many labels."""
    shutil.copytree(sweep, to)
    content = json.loads((to / "comparison.json").read_text())
    content["runs"] = [
        run | {"label": f"{run['label']} {number}" if number else run["label"]}
        for number in range(copies)
        for run in content["runs"]
    ]
    (to / "comparison.json").write_text(json.dumps(content))
    return to


@pytest.mark.parametrize("copies", [1, 3, 8])  # 3, 9 and 24 labels
def test_the_page_of_a_comparison_is_drawn_and_no_labels_overlap(
    browser: webdriver.Chrome, sweep: Path, tmp_path: Path, copies: int
) -> None:
    page = write_page([with_labels(sweep, tmp_path / "sweep", copies)])
    show(browser, page.as_uri())
    assert browser.execute_script(f"return {EMPTY_CHARTS}") == []
    assert browser.execute_script(f"return {OVERLAPS}") == []
    assert console_messages(browser) == []
    assert {url for url in requests(browser) if not url.startswith("data:")} == {page.as_uri()}
    shown = browser.find_element(By.CSS_SELECTOR, "#results table").text
    assert f"fedgh:server_lr=0 {copies - 1}" in shown if copies > 1 else "fedgh" in shown


def test_no_labels_of_a_page_of_runs_overlap(browser: webdriver.Chrome, file: Path) -> None:
    show(browser, file.as_uri())
    assert browser.execute_script(f"return {OVERLAPS}") == []


@pytest.mark.parametrize("name", ["table-hetero", "models"])
def test_the_page_of_a_study_is_drawn_offline(
    browser: webdriver.Chrome, name: str, tmp_path: Path
) -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    page = tmp_path / "study.html"
    study.write(collect(Reproduction(name, seeds=[0]), results, {}), page, tmp_path / "figures")
    show(browser, page.as_uri())
    assert browser.execute_script(f"return {EMPTY_CHARTS}") == []
    assert console_messages(browser) == []
    assert {url for url in requests(browser) if not url.startswith("data:")} == {page.as_uri()}
    assert "paper, " in browser.find_element(By.CSS_SELECTOR, "thead").text
    assert browser.execute_script(f"return {OVERLAPS}") == []
    show(browser, page.as_uri(), width=500)  # a wide table is scrolled, its caption is not
    for caption in browser.find_elements(By.TAG_NAME, "caption"):
        assert caption.size["width"] <= 500
