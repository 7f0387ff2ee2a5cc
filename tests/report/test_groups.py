"""Runs that differ only in the seed are one group, wherever several runs are shown."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from fedgh.report.groups import group_by_seed
from fedgh.report.page import Cell, Figure, Table
from fedgh.report.run_page import run_page
from fedgh.runs.read import NamedRun, name_runs
from fedgh.trained import confusion
from fedgh.trust import OWN
from tests.report.parts import cut, rows


@pytest.fixture
def runs(sweep: Path) -> list[NamedRun]:
    """Two methods with two seeds each, and one with one seed."""
    names = ["fedgh-seed0", "standalone-seed0", "standalone-seed1", "fedgh-seed1"]
    return name_runs([sweep / name for name in (*names, "fedgh,server_lr=0-seed1")])


def test_runs_are_grouped_by_their_settings_without_the_seed(runs: list[NamedRun]) -> None:
    groups = group_by_seed(runs)
    assert {label: [run.label for run in found] for label, found in groups.items()} == {
        "fedgh": ["fedgh-seed0", "fedgh-seed1"],
        "standalone": ["standalone-seed0", "standalone-seed1"],
        "fedgh,server_lr=0-seed1": ["fedgh,server_lr=0-seed1"],
    }


def test_the_same_seed_twice_is_two_groups(sweep: Path, tmp_path: Path) -> None:
    again = shutil.copytree(sweep / "fedgh-seed0", tmp_path / "again")
    groups = group_by_seed(name_runs([sweep / "fedgh-seed0", again, sweep / "fedgh-seed1"]))
    assert [len(found) for found in groups.values()] == [2, 1]


def test_an_engine_makes_no_difference_but_an_epoch_does(sweep: Path, tmp_path: Path) -> None:
    paths = []
    for number, (old, new) in enumerate(
        [('engine = "serial"', 'engine = "workers"'), ("epochs = 2", "epochs = 3")]
    ):
        paths.append(shutil.copytree(sweep / "fedgh-seed1", tmp_path / f"run{number}"))
        config = paths[-1] / "config.toml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new, 1))
    groups = group_by_seed(name_runs([sweep / "fedgh-seed0", *paths]))
    assert [[run.label for run in found] for found in groups.values()] == [
        ["fedgh-seed0", "run0"],
        ["run1"],
    ]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("x-seed0", "x-seed1"), "x"),
        (("x-seed10", "x-seed11"), "x"),
        (("lr0.1-a", "lr0.1-b"), "lr0.1"),
        (("one", "two"), "one, two"),
        (("seed0", "seed1"), "seed0, seed1"),
    ],
)
def test_a_group_is_named_by_what_its_labels_share(
    sweep: Path, tmp_path: Path, names: tuple[str, str], label: str
) -> None:
    paths = [
        shutil.copytree(sweep / f"fedgh-seed{seed}", tmp_path / name)
        for seed, name in enumerate(names)
    ]
    assert [*group_by_seed(name_runs(paths))] == [label]


def test_the_page_of_runs_shows_groups(runs: list[NamedRun]) -> None:
    page = run_page(runs, partial(confusion.measure, trust=OWN))
    figures = {figure.id: figure for figure in page.figures()}
    labels = ["fedgh", "standalone", "fedgh,server_lr=0-seed1"]
    for name in ("accuracy-over-rounds", "loss-over-rounds", "bytes", "seconds-by-phase"):
        shown = dict.fromkeys(row["run"] for row in rows(figures[name].chart) if "run" in row)
        assert [*shown] == labels, name
    assert [name for name in figures if name.startswith("confusion")] == [
        *("confusion-1", "confusion-2", "confusion-3"),
    ]
    one, other = (confusion.measure(run.folder, trust=OWN) for run in (runs[0], runs[3]))
    cells = rows(figures["confusion-1"].chart)
    assert sum(cell["samples"] for cell in cells) == sum(one.tested) + sum(other.tested)
    table = page.sections[0].parts[0]
    assert isinstance(table, Table)
    means = {row[0]: row[2] for row in table.rows}
    scores = [run.rounds[-1].accuracy or 0 for run in (runs[0], runs[3])]
    assert isinstance(means["fedgh"], Cell)
    assert means["fedgh"].value == pytest.approx(sum(scores) / 2)


def test_a_reason_that_several_runs_share_is_given_once(runs: list[NamedRun]) -> None:
    sections = {section.id: section for section in run_page(runs, lambda _: None).sections}
    assert sections["classes"].text.count("not measured yet.") == 1
    assert sections["means"].text.count("no class means are stored.") == 1
    assert not [part for part in sections["classes"].parts if isinstance(part, Figure)]


def test_a_mean_over_seeds_has_finished_runs_only(sweep: Path, tmp_path: Path) -> None:
    stopped = cut(sweep / "fedgh-seed1", tmp_path / "fedgh-seed1", 1)
    runs = name_runs([sweep / "fedgh-seed0", stopped, sweep / "standalone-seed0"])
    page = run_page(runs, lambda _: None)
    table = page.sections[0].parts[0]
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == ["0", "0"]
    assert "Not finished: 1 of 3." in page.lead
