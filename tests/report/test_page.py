"""The content of a page, and the escaping of text from a run folder: it is never HTML or code."""

import base64
import hashlib
import json
import re
import shutil
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgh.errors import RunError
from fedgh.report import page
from fedgh.report.page import Cell, Fold, Image, Page, Section, Table
from fedgh.report.run_page import run_page, state_of
from fedgh.report.write import write_page
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun, name_runs
from fedgh.trained import confusion
from fedgh.trust import OWN
from tests.report.parts import HOSTILE, cut, rewrite
from tests.support.tiny import a_run


class Elements(HTMLParser):
    """The elements of a page, the text of its scripts, and its other text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def two_runs(runs: list[NamedRun]) -> Elements:
    return Elements(page.html(run_page(runs, partial(confusion.measure, trust=OWN))))


def content(*paths: Path) -> dict[str, Any]:
    return run_page(name_runs(paths), confusion.read).content()


def test_class_names_with_html_are_escaped(two_runs: Elements, runs: list[NamedRun]) -> None:
    assert len(two_runs.scripts) == 4  # two with data, then two with code
    charts = json.loads(two_runs.scripts[0])
    assert HOSTILE in two_runs.text  # in the table of mistakes or the labels of clients
    assert HOSTILE in json.dumps(charts)
    assert not any(tag == "b" for tag, _ in two_runs.tags)
    raw = page.html(run_page(runs, partial(confusion.measure, trust=OWN)))
    assert raw.count("</script>") == 4
    assert "<script>alert" not in raw


def test_text_is_escaped_in_every_part_of_a_page() -> None:
    bad = '<i title="x">&'
    table = Table([bad], [[bad], [Cell(bad, bad)]], bad)
    section = Section("s", bad, bad, [table, Fold(bad, bad), Image("i", bad, bad, b"", 1)])
    elements = Elements(page.html(Page(bad, bad, [section])))
    assert not any(tag == "i" for tag, _ in elements.tags)
    assert elements.text.count(bad) == 13  # the title of the page and of the section appear twice
    assert [a["alt"] for tag, a in elements.tags if tag == "img"] == [bad]


def test_the_content_security_policy_allows_only_the_pages_scripts(
    two_runs: Elements,
) -> None:
    policy = next(a["content"] for _, a in two_runs.tags if a.get("http-equiv"))
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    hashes = [hashlib.sha256(code.encode()).digest() for code in two_runs.scripts[2:]]
    allowed = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes]
    assert rules["script-src"] == " ".join(allowed)
    for _, attributes in two_runs.tags:
        for name in ("src", "href"):
            assert re.match(r"#|data:,$", attributes.get(name) or "#")


def test_every_chart_has_an_element_a_caption_and_a_description(two_runs: Elements) -> None:
    charts = json.loads(two_runs.scripts[0])
    ids = [a["data-chart"] for _, a in two_runs.tags if "data-chart" in a]
    assert sorted(charts) == sorted(filter(None, ids))
    assert len(set(ids)) == len(ids)
    assert {*ids} >= {"accuracy-over-rounds", "means-1", "confusion-2", "samples-1", "bytes"}
    assert sum(tag == "figcaption" for tag, _ in two_runs.tags) == len(charts)
    assert all(chart["description"] for chart in charts.values())


def test_the_table_of_settings_has_only_settings_that_differ(runs: list[NamedRun]) -> None:
    sections = {s.id: s for s in run_page(runs, confusion.read).sections}
    table = sections["configuration"].parts[0]
    assert isinstance(table, Table)
    named = {row[0]: list(row[1:]) for row in table.rows}
    assert named["method.name"] == ["fedgh", "standalone"]
    assert named["method.reset_header"] == ["-", "false"]
    assert "federation.seed" not in named


def test_the_summary_shows_the_last_round_not_the_best(runs: list[NamedRun]) -> None:
    table = run_page(runs, confusion.read).sections[0].parts[0]
    assert isinstance(table, Table)
    for run, row in zip(runs, table.rows, strict=True):
        cells = dict(zip(table.header, row, strict=True))
        summary = run.folder.summary()
        assert summary is not None
        shown = {name: v.value if isinstance(v, Cell) else v for name, v in cells.items()}
        assert shown == {
            "run": run.label,
            "method": summary.method,
            "data": "npz",
            "seed": 0,
            "rounds": 3,
            "accuracy": run.rounds[-1].accuracy,
            "on all classes": run.rounds[-1].scores["global_accuracy"],
            "rounds to target": summary.rounds_to_target,
            "bytes to target": summary.bytes_to_target,
            "bytes sent": summary.bytes_total,
            "per client and round": summary.bytes_per_client_round,
            "seconds": summary.seconds,
        }


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_an_unfinished_run_has_a_page_with_its_progress(
    folders: list[Path], tmp_path: Path, rounds: int
) -> None:
    path = cut(folders[0], tmp_path / "run", rounds)
    shown = content(path)
    assert ("accuracy-over-rounds" in shown["charts"]) == (rounds > 0)
    assert "samples-1" in shown["charts"]
    (run,) = name_runs([path])
    progress = f"round {rounds} of 3 is done" if rounds else "no round is complete yet"
    assert state_of(run) == progress
    assert progress in shown["main"]
    measured = run_page([run], partial(confusion.measure, trust=OWN)).content()
    assert "has not finished" in measured["main"]


def test_failed_clients_and_rejected_uploads_are_shown(folders: list[Path], tmp_path: Path) -> None:
    path = cut(folders[0], tmp_path / "run", 2)
    assert "rejected" not in content(path)["main"]
    failed, rejected = ([{"client": 4, "reason": f"<i>{word}"}] for word in ("late", "wrong"))
    rewrite(path / "rounds.jsonl", failed=failed, rejected=rejected)
    main = content(path)["main"]
    assert "&lt;i&gt;late" in main
    assert "&lt;i&gt;wrong" in main


def test_the_page_of_a_method_without_class_means_says_so(runs: list[NamedRun]) -> None:
    sections = {s.id: s for s in run_page(runs[1:], confusion.read).sections}
    assert "standalone: no class means are stored." in sections["means"].text
    assert not sections["means"].parts
    assert "Nothing was sent." in sections["costs"].text


def test_a_page_shows_the_reason_for_a_missing_chart(folders: list[Path], tmp_path: Path) -> None:
    path = shutil.copytree(folders[0], tmp_path / "run")
    (path / "confusion.json").unlink(missing_ok=True)
    shutil.rmtree(path / "checkpoint")
    file = next((path / "means").iterdir())
    file.write_bytes(b"nonsense")
    shown = run_page(name_runs([path]), partial(confusion.measure, trust=OWN)).content()
    assert "has no checkpoint/, so its models are missing" in shown["main"]
    assert f"means/{file.name} cannot be read" in shown["main"]

    def failing_code(_: object) -> None:
        raise ZeroDivisionError("by a <b>user's</b> network")

    shown = run_page(name_runs([path]), failing_code).content()
    assert "ZeroDivisionError: by a &lt;b&gt;user" in shown["main"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("rounds.jsonl", '{"round": 1}\n', "rounds.jsonl is not what a run writes: 0.participants"),
        ("clients.json", "[[]]", "clients.json is not what a run writes"),
        ("data.json", "{}", "data.json has format version None"),
        ("config.toml", "[federation]\nclients = 'x'", "config.toml is not what a run writes"),
        ("config.toml", "?", "is not valid TOML"),
    ],
)
def test_the_error_for_a_damaged_file_names_the_file(
    folders: list[Path], tmp_path: Path, file: str, text: str, message: str
) -> None:
    path = shutil.copytree(folders[0], tmp_path / "run")
    shutil.rmtree(path / "checkpoint")  # its digest would detect the damage first
    (path / file).write_text(text)
    with pytest.raises(RunError) as caught:
        content(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": {}},
        {"seconds": {"total": 1e308}},
        {"bytes_total": 10**400},
        {"bytes_up": -1},
        {"accuracy_per_client": None},
        {"train_loss": float("nan")},
    ],
)
def test_a_record_with_invalid_values_is_refused(
    folders: list[Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = shutil.copytree(folders[0], tmp_path / "run")
    rewrite(path / "rounds.jsonl", **changes)
    with pytest.raises(RunError, match="is not what a run writes"):
        content(path)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("classes", torch.tensor([0.0, 1.0])),
        ("classes", torch.tensor([0, 99], dtype=torch.int32)),
        ("means", torch.full((2, 3), 1e200, dtype=torch.float64)),
        ("means", torch.full((2, 3), torch.nan)),
        ("means", torch.zeros(2, 3, dtype=torch.complex64)),
        ("means", torch.zeros(2, 3).to(torch.float8_e4m3fn)),
    ],
)
def test_class_means_with_invalid_tensors_are_not_drawn(
    folders: list[Path], tmp_path: Path, name: str, tensor: torch.Tensor
) -> None:
    path = shutil.copytree(folders[0], tmp_path / "run")
    index = torch.arange(2, dtype=torch.int32)
    means = {"clients": index, "classes": index.clone(), "means": torch.zeros(2, 3)}
    RunFolder(path).keep_means(1, means | {name: tensor})
    text = str(content(path)["main"])
    assert "means cannot be read" in text
    assert 'data-chart="means-1"' not in text


def test_code_named_in_a_run_of_a_remote_party_is_not_run(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(folders[0], tmp_path / "run")
    (path / "confusion.json").unlink(missing_ok=True)
    config = path / "config.toml"
    config.write_text(config.read_text().replace('name = "fedgh"', 'name = "remote_code:Method"'))
    (tmp_path / "remote_code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = write_page([path], tmp_path / "page.html")
    assert "names a method outside fedgh" in out.read_text()
    assert "remote_code" not in sys.modules


def test_run_labels_are_the_shortest_paths_that_differ(tmp_path: Path) -> None:
    for name in ("a/x/run", "b/x/run"):
        a_run(tmp_path / name)
    one, other = tmp_path / "a/x/run", tmp_path / "b/x/run"
    assert [run.label for run in name_runs([one, other])] == ["a/x/run", "b/x/run"]
    assert [run.label for run in name_runs([one])] == ["run"]
    with pytest.raises(RunError, match="given twice"):
        name_runs([one, tmp_path / "b/../a/x/run"])
    with pytest.raises(RunError, match="is not a run folder"):
        name_runs([tmp_path])
