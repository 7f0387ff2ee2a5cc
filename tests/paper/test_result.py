"""From runs to "paper, ours, difference" and to what holds, worked by hand."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from fedgh.core.runs import RunFolder
from fedgh.paper.result import communication, lines, main_sheet, verdicts
from fedgh.paper.sheets import Column, Sheet
from fedgh.paper.study import Study
from fedgh.sweep import Outcome, Trial, plan_comparison

STUDY = Study.model_validate(
    {
        "title": "A study",
        "source": "",
        "about": "",
        "methods": ["standalone", "fd", "fedgh"],
        "claim": [
            {"text": "FedGH is best", "highest": "fedgh"},
            {"text": "nothing matters", "alike": ["standalone", "fedgh", "fd"]},
        ],
        "case": [
            {
                "name": "here",
                "title": "Here",
                "experiment": "demo",
                "published": {
                    "standalone": {"accuracy": 60.0},
                    "fd": {},
                    "fedgh": {
                        "accuracy": 75.0,
                        "kb_per_client_round": 2.0,
                        "rounds_to_target": 4,
                        "kb_to_target": 8.0,
                    },
                },
            },
            {"name": "there", "title": "There", "experiment": "demo"},
        ],
    }
)


def made(path: Path, accuracies: list[float]) -> RunFolder:
    """A finished run of two rounds, of which the first was better."""
    run = RunFolder.create(path, "", {}, [], {})
    for number, each in enumerate([[1.0] * len(accuracies), accuracies], 1):
        mean = sum(each) / len(each)
        run.append(
            {
                "round": number,
                "accuracy": mean,
                "accuracy_per_client": each,
                "evaluation_accuracy_per_client": each,
            }
        )
    run.write_summary(
        {
            "rounds_to_target": 1,
            "bytes_to_target": 3072,
            "bytes_per_client_round": 1536.0,
            "paper_bytes_per_client_round": 2048.0,
            "seconds": 2.0,
        }
    )
    return run


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    """FedGH is a tenth better for each of eight clients."""
    (trial,) = plan_comparison("demo", "fedgh", [0])
    trial = replace(trial, place="here")
    alone = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85]
    runs: list[tuple[Trial, RunFolder]] = [
        (replace(trial, label="standalone"), made(tmp_path / "a", alone)),
        (trial, made(tmp_path / "b", [each + 0.1 for each in alone])),
    ]
    return Outcome(runs, {"here: fd": "not run", "there: fedgh": "training diverged"})


def test_paper_ours_difference(outcome: Outcome) -> None:
    table = main_sheet(lines(STUDY, outcome))
    titles = [column.title for column in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    assert [row["method"] for row in rows] == STUDY.methods * 2
    alone, fd, fedgh = rows[:3]
    assert alone["ours, %"] == pytest.approx(67.5)  # of the last round
    assert alone["difference"] == pytest.approx(7.5)
    assert fedgh["difference"] == pytest.approx(77.5 - 75.0)
    assert (fd["ours, %"], fd["difference"], fd["seeds"]) == ("not run", None, 0)
    assert rows[5]["ours, %"] == "no result"


def test_costs_where_the_paper_prints_them(outcome: Outcome) -> None:
    (row,) = communication(lines(STUDY, outcome)).rows
    assert row == ["Here", "fedgh", 2.0, 2.0, 1.5, 4, 1, 8.0, 3.0]


def test_what_holds(outcome: Outcome) -> None:
    rows = {(str(row[0]), str(row[1])): list(row[2:]) for row in verdicts(STUDY, outcome).rows}
    word, because, points, p = rows["FedGH is best", "Here"]
    assert (word, because) == ("yes", "the best other is standalone")
    assert points == pytest.approx(10)
    assert p == pytest.approx(2 / 2**8, abs=0.002)  # both ways of flipping eight alike signs
    word, because, points, _ = rows["nothing matters", "Here"]
    assert word == "no"
    assert points == pytest.approx(10)
    assert because == "lowest standalone, highest fedgh; 1 of 3 not run"
    assert rows["FedGH is best", "There"][0] == "not run"
    assert rows["nothing matters", "There"][0] == "not run"


def test_a_claim_that_fails(outcome: Outcome) -> None:
    swapped = Outcome(
        [
            (replace(trial, label="fedgh" if trial.label == "standalone" else "standalone"), run)
            for trial, run in outcome.runs
        ],
        {},
    )
    word, _, points, _ = list(verdicts(STUDY, swapped).rows[0])[2:]
    assert word == "no"
    assert points == pytest.approx(-10)


def test_noise_is_called_noise(tmp_path: Path, outcome: Outcome) -> None:
    trial = outcome.runs[1][0]
    runs = [
        (replace(trial, label="standalone"), made(tmp_path / "c", [0.5, 0.7, 0.5, 0.7])),
        (trial, made(tmp_path / "d", [0.7, 0.5, 0.6, 0.7])),
    ]
    words = [row[2] for row in verdicts(STUDY, Outcome(runs, {})).rows]
    assert words == ["ahead, within noise", "not run", "within noise", "not run"]


def test_tables_for_people_and_programs() -> None:
    sheet = Sheet(
        "t",
        "T",
        [Column("name"), Column("size", 1), Column("gain", signed=True)],
        [["a|b", 1234.56, 0.126], ["c", None, None]],
        "A note.",
    )
    assert sheet.markdown() == (
        "| name | size | gain |\n| --- | --: | --: |\n"
        "| a\\|b | 1,234.6 | +0.13 |\n| c | - | - |\n\nA note.\n"
    )
    assert list(csv.reader(io.StringIO(sheet.csv()))) == [
        ["name", "size", "gain"],
        ["a|b", "1234.56", "0.126"],
        ["c", "", ""],
    ]
