"""The page of a comparison or a search: its numbers, its groups, and what it must not show."""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgh.choices import TableFormat
from fedgh.errors import RunError
from fedgh.formats import notes_of
from fedgh.report import page, sweep_charts
from fedgh.report.page import Cell, Figure, Table
from fedgh.report.printed import printed
from fedgh.report.sweep_page import sweep_page
from fedgh.report.write import write_page
from fedgh.studies import sweep_folder
from fedgh.studies.sweep import join_seeds
from fedgh.studies.sweep_folder import Sweep
from tests.report.parts import HOSTILE, rows
from tests.support.commands import inside

LABELS = ["fedgh", "standalone", "fedgh:server_lr=0"]


@pytest.fixture
def read(sweep: Path) -> Sweep:
    return sweep_folder.read(sweep)


def tables(of: page.Page, section: str) -> list[Table]:
    (found,) = (each for each in of.sections if each.id == section)
    return [part for part in found.parts if isinstance(part, Table)]


def figures(of: page.Page) -> dict[str, Figure]:
    return {figure.id: figure for figure in of.figures()}


def test_the_page_has_every_part_of_a_comparison(read: Sweep) -> None:
    shown = sweep_page(read)
    assert [section.id for section in shown.sections] == [
        *("results", "differences", "learning", "clients", "networks", "costs"),
        *("missing", "configuration"),
    ]
    assert [*figures(shown)] == [
        *("accuracy", "global-accuracy", "differences", "accuracy-over-rounds"),
        *("accuracy-over-bytes", "loss-over-rounds", "accuracy-by-client"),
        *("global-accuracy-by-client", "bytes", "seconds"),
    ]
    assert "3 methods on npz: 5 clients, 3 rounds, seeds 0, 1." in shown.lead
    assert "0 of 2 in the test over clients and seeds, 0 in the test over seeds" in shown.lead


def test_the_table_of_results_has_means_and_deviations_over_seeds(read: Sweep) -> None:
    (table,) = tables(sweep_page(read), "results")
    for row, line in zip(read.rows, table.rows, strict=True):
        assert line[0] == Cell(row.label, row.label)
        accuracy = line[1]
        assert isinstance(accuracy, Cell)
        assert accuracy.value == pytest.approx(100 * (row.accuracy or 0))
        assert " ± " in accuracy.text
    best = max(read.rows, key=lambda row: row.accuracy or 0)
    bold = [line[0] for line in table.rows if isinstance(line[1], Cell) and line[1].best]
    assert Cell(best.label, best.label) in bold


def test_a_method_has_one_line_with_a_band_and_one_colour(read: Sweep) -> None:
    drawn = figures(sweep_page(read))
    lines = [row for row in rows(drawn["accuracy-over-rounds"].chart) if "run" in row]
    assert list(dict.fromkeys(row["run"] for row in lines)) == LABELS
    assert len(lines) == 3 * 3
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in lines)
    final = {row["run"]: row["accuracy"] for row in lines if row["round"] == 3}
    assert final == {row.label: pytest.approx(row.accuracy) for row in read.rows}
    for name in ("accuracy", "differences", "accuracy-over-rounds", "bytes", "seconds"):
        assert json.dumps(LABELS) in json.dumps(drawn[name].chart.to_dict()), name


def test_clients_of_all_seeds_are_one_distribution(read: Sweep) -> None:
    drawn = rows(figures(sweep_page(read))["accuracy-by-client"].chart)
    counts = {row["run"]: row["clients"] for row in drawn if "clients" in row}
    assert counts == dict.fromkeys(LABELS, 2 * 5)
    scores = sorted(row["accuracy"] for row in drawn if row["run"] == "fedgh" and "p5" not in row)
    runs = read.runs["fedgh"].values()
    known = [score for run in runs for score in run.records()[-1].accuracies if score is not None]
    assert scores == sorted(known)


def test_missing_runs_are_listed_and_a_shared_reason_once(read: Sweep) -> None:
    (table,) = tables(sweep_page(read), "missing")
    assert list(table.rows) == [["fedavg; fml", HOSTILE]]
    assert HOSTILE not in page.html(sweep_page(read))


def test_missing_seeds_of_a_method_are_joined(read: Sweep) -> None:
    missing = {f"{method}, seed {seed}": "no" for method in ("fd", "fml") for seed in (0, 1)}
    (table,) = tables(sweep_page(replace(read, missing=missing)), "missing")
    assert list(table.rows) == [["fd, seeds 0, 1; fml, seeds 0, 1", "no"]]
    assert notes_of(join_seeds(missing).items()) == ["fd, seeds 0, 1; fml, seeds 0, 1: no"]


def test_one_seed_has_no_bands_and_no_deviations(sweep: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sweep, tmp_path / "one")
    content = json.loads((folder / "comparison.json").read_text())
    content["runs"] = [run for run in content["runs"] if run["seed"] == 0]
    (folder / "comparison.json").write_text(json.dumps(content | {"seeds": [0]}))
    shown = sweep_page(sweep_folder.read(folder))
    assert "seed 0." in shown.lead
    assert "±" not in str(tables(shown, "results")[0].rows)
    assert "low" not in json.dumps(figures(shown)["accuracy-over-rounds"].chart.to_dict())
    assert "so there is no standard deviation" in shown.sections[0].text


def test_a_comparison_without_results_lists_the_reasons(sweep: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sweep, tmp_path / "none")
    for run in folder.glob("*/summary.json"):
        run.unlink()
    shown = sweep_page(sweep_folder.read(folder))
    assert [section.id for section in shown.sections] == ["missing"]
    assert shown.lead == "No run has a result."
    with pytest.raises(RunError, match="has no result for a table; fedavg, fml: "):
        printed(folder, "csv")


def test_the_page_of_a_search_shows_no_test_data_but_of_chosen_settings(
    sweep: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sweep, tmp_path / "search")
    (folder / "comparison.json").rename(folder / "search.json")
    read = sweep_folder.read(folder)
    shown = sweep_page(read)
    assert [section.id for section in shown.sections] == [
        *("results", "learning", "costs", "missing", "configuration"),
    ]
    (table,) = tables(shown, "results")
    assert list(table.header) == ["settings", "chosen", "validation, %", "test, %", "seeds"]
    assert {line[0].text for line in table.rows if isinstance(line[0], Cell)} == {*LABELS}
    drawn = rows(figures(shown)["validation-accuracy-over-rounds"].chart)
    for label, runs in read.runs.items():
        means = [
            sum(run.records()[-1].scores["validation_accuracy"] or 0 for run in runs.values()) / 2
        ]
        last = [row["accuracy"] for row in drawn if row["run"] == label and row["round"] == 3]
        assert last == pytest.approx(means)


def test_the_axis_of_accuracies_does_not_go_beyond_a_hundred_percent(read: Sweep) -> None:
    row = replace(read.rows[0], accuracy=0.99, accuracy_std=0.02)
    chart = sweep_charts.accuracies([row], lambda row: (row.accuracy, row.accuracy_std), {})
    assert [one["high"] for one in rows(chart)] == [1.0]
    for layer in chart.to_dict()["layer"]:
        assert layer["encoding"]["x"]["scale"]["nice"] is False


def test_a_method_that_sends_nothing_has_no_point_on_the_logarithmic_axis(read: Sweep) -> None:
    chart = sweep_charts.bytes_per_round(read.rows).to_dict()
    data = {layer["mark"]["type"]: layer["data"]["name"] for layer in chart["layer"][:2]}
    sent = {row["run"]: row["sent"] for row in chart["datasets"][data["point"]]}
    unit = 1024 if "KB" in str(chart) else 1
    assert sent == {
        row.label: pytest.approx((row.bytes_per_client_round or 0) / unit)
        for row in read.rows
        if row.label != "standalone"
    }
    assert chart["layer"][2]["encoding"]["x"] == {"value": 0}
    assert "0 B" in str(chart["datasets"][chart["layer"][2]["data"]["name"]])


def test_report_finds_a_comparison(sweep: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sweep, tmp_path / "sweep")
    assert write_page([folder]) == folder / "report.html"
    with pytest.raises(RunError, match="is the folder of a comparison"):
        write_page([folder, folder / "fedgh-seed0"])
    (folder / "comparison.json").unlink()
    with pytest.raises(RunError, match=r"the runs so far: fedgh report .*/sweep/\*-seed\*"):
        write_page([folder])


def test_report_prints_tables(
    sweep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def printed(*options: str) -> str:
        assert inside(monkeypatch, "report", str(sweep), *options) == 0
        return capsys.readouterr().out

    latex = printed("--format", "latex")
    assert latex.startswith("% \\usepackage{booktabs,graphicx}\n\\begin{table}")
    assert r"fedgh:server\_lr=0 & $" in latex
    assert "(10 pairs, which are not independent), with Holm's correction for 2" in latex
    markdown = printed("--format", "markdown")
    assert "| fedgh:server_lr=0 | " in markdown
    comparison = (sweep / "comparison.csv").read_text()
    assert printed("--format", "csv") == comparison
    assert len([*csv.DictReader(io.StringIO(comparison))]) == 3
    assert printed("--format", "latex", "--out", str(tmp_path / "new" / "table.tex")) == ""
    assert (tmp_path / "new" / "table.tex").read_text() == latex


@pytest.mark.parametrize("kind", ["latex", "markdown", "csv"])
def test_no_text_of_a_folder_controls_the_terminal(
    kind: TableFormat, sweep: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "from somebody"
    shutil.copytree(sweep, folder)
    file = folder / "comparison.json"
    content = json.loads(file.read_text())
    for entry in content["runs"]:
        entry["label"] += "\x1b[2J\x9b\r\u202e"
    file.write_text(json.dumps(content))
    text = printed(folder, kind)
    assert "[2J" in text.replace("{[}", "[")
    assert all(line.isprintable() for line in text.split("\n"))
    file.write_text(json.dumps({**content, "runs": [], "missing": {"\x1b[2J": "\x1b[31m"}}))
    with pytest.raises(RunError) as problem:
        printed(folder, kind)
    assert str(problem.value).isprintable()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{sweep}/fedgh-seed0"], "is no folder of `fedgh compare`, `tune` or `reproduce`"),
        (["{sweep}", "{sweep}"], "name one folder"),
        (["{sweep}", "--figures", "figures"], "charts are svg, png or pdf"),
    ],
)
def test_mistakes_with_formats_are_explained(
    sweep: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    words = [word.format(sweep=sweep) for word in arguments]
    assert inside(monkeypatch, "report", *words, "--format", "latex") == 2
    assert message in capsys.readouterr().err


def test_the_page_needs_no_trust(sweep: Path, tmp_path: Path) -> None:
    """A label from a remote party is text; a network that its folder names is not imported."""
    folder = shutil.copytree(sweep, tmp_path / "sweep")
    content: dict[str, Any] = json.loads((folder / "comparison.json").read_text())
    for run in content["runs"]:
        run["label"] = run["label"].replace("standalone", HOSTILE)
    content["reference"] = HOSTILE
    (folder / "comparison.json").write_text(json.dumps(content))
    for config in folder.glob("*/config.toml"):
        text = config.read_text().replace("tests.support.tiny:mlp", "remote_code:net")
        config.write_text(text)
    text = write_page([folder]).read_text()
    assert text.count("</script>") == 4
    assert "<script>alert" not in text
