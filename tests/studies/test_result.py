"""The tables of a study of accuracy and the verdicts on its claims, worked by hand."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgh.runs.folder import RunFolder
from fedgh.studies.result import communication, differences, lines, main_sheet, verdicts
from fedgh.studies.significance import range_test
from fedgh.studies.statistics import client_accuracies
from fedgh.studies.study import Study
from fedgh.studies.sweep import NOT_RUN, Outcome, Trial, plan_comparison
from fedgh.tables import Column, Sheet
from tests.support.records import a_round, a_summary
from tests.support.tiny import a_run

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
        "setting": [
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


def finished_run(path: Path, accuracies: list[float], **other_scores: list[float]) -> RunFolder:
    """Return a finished run of two rounds, whose first round was better."""
    run = a_run(path)
    for number, each in enumerate([[1.0] * len(accuracies), accuracies], 1):
        mean = sum(each) / len(each)
        scores = {"accuracy_per_client": each, "validation_accuracy_per_client": each}
        scores |= other_scores
        run.append(a_round(number, mean, **scores))
    run.write_summary(
        a_summary(
            rounds_to_target=1,
            bytes_to_target=3072,
            bytes_per_client_round=1536.0,
            paper_bytes_per_client_round=2048.0,
            seconds=2.0,
        )
    )
    return run


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    """Two runs in the setting `here`: FedGH is 10 points better for each of eight clients."""
    (trial,) = plan_comparison("demo", "fedgh", [0])
    trial = replace(trial, setting="here")
    alone = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85]
    runs: list[tuple[Trial, RunFolder]] = [
        (replace(trial, label="standalone"), finished_run(tmp_path / "a", alone)),
        (trial, finished_run(tmp_path / "b", [each + 0.1 for each in alone])),
    ]
    return Outcome(runs, {"here: fd, seed 0": NOT_RUN, "there: fedgh, seed 0": "training diverged"})


def test_the_table_of_accuracies_has_paper_ours_and_difference(outcome: Outcome) -> None:
    table = main_sheet(lines(STUDY, outcome, 1))
    titles = [column.title for column in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    assert [row["method"] for row in rows] == STUDY.methods * 2
    alone, fd, fedgh = rows[:3]
    assert alone["ours, %"] == pytest.approx(67.5)  # of the last round
    assert alone["difference"] == pytest.approx(7.5)
    assert fedgh["difference"] == pytest.approx(77.5 - 75.0)
    assert (fd["ours, %"], fd["difference"], fd["seeds"]) == ("not run", None, "0 of 1")
    assert rows[5]["ours, %"] == "no result"


def test_all_classes_are_shown_if_a_run_measured_them(tmp_path: Path, outcome: Outcome) -> None:
    without = [column.title for column in main_sheet(lines(STUDY, outcome, 1)).columns]
    run = finished_run(tmp_path / "g", [0.5, 0.7], global_accuracy_per_client=[0.2, 0.4])
    measured = Outcome([outcome.runs[0], (outcome.runs[1][0], run)], {})
    table = main_sheet(lines(STUDY, measured, 1))
    titles = [column.title for column in table.columns]
    assert "all classes, %" not in without
    assert [*(row[titles.index("all classes, %")] for row in table.rows[:3])] == [
        None,
        None,
        pytest.approx(30),
    ]


def test_differences_have_an_interval_over_seeds_worked_by_hand(
    tmp_path: Path, outcome: Outcome
) -> None:
    """FedGH leads by 10 and 20 points: 15 with a standard error of 5, and t(1) = 12.706."""
    (alone, first), (trial, second) = outcome.runs
    lower = [each - 0.1 for each in client_accuracies(first)]
    again = [
        (replace(alone, seed=1), finished_run(tmp_path / "lower", lower)),
        (replace(trial, seed=1), second),
    ]
    (row,) = differences(STUDY, Outcome([*outcome.runs, *again], {})).rows
    assert list(row[:2]) == ["Here", "fedgh"]
    assert list(row[2:5]) == pytest.approx([15, 15 - 63.5, 15 + 63.5], abs=0.1)
    assert list(row[5:7]) == [2, 0.5]  # two seeds: 2 / 2^2
    assert not differences(STUDY, outcome).rows  # one seed


def test_communication_is_shown_for_methods_with_published_costs(outcome: Outcome) -> None:
    (row,) = communication(lines(STUDY, outcome, 1)).rows
    assert row == ["Here", "fedgh", 2.0, 2.0, 1.5, 4, 1, "1 of 1", 8.0, 3.0]


def test_verdicts_on_claims_worked_by_hand(outcome: Outcome) -> None:
    rows = {(str(row[0]), str(row[1])): list(row[2:]) for row in verdicts(STUDY, outcome).rows}
    verdict, because, points, p = rows["FedGH is best", "Here"]
    assert verdict == "yes, of those run"
    assert because == "least certain against standalone; 1 of 2 other methods have no result"
    assert points == pytest.approx(10)
    assert p == pytest.approx(2 / 2**8, abs=0.002)  # all eight signs plus, or all minus
    verdict, because, points, _ = rows["nothing matters", "Here"]
    assert verdict == "no"
    assert points == pytest.approx(10)
    assert because == "lowest standalone, highest fedgh; 1 of 3 have no result"
    assert rows["FedGH is best", "There"][0] == "no result"
    assert rows["nothing matters", "There"][0] == "no result"


def test_the_method_that_decides_a_verdict_is_named(tmp_path: Path, outcome: Outcome) -> None:
    """A small, steady lead is more significant than a large, erratic one; p is multiplied by 2."""
    trial = outcome.runs[1][0]
    scores = [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65]
    erratic = [each + more for each, more in zip(scores, [0.3, -0.2] * 4, strict=True)]
    runs = [
        (
            replace(trial, label="standalone"),
            finished_run(tmp_path / "s", [x + 0.01 for x in scores]),
        ),
        (replace(trial, label="fd"), finished_run(tmp_path / "e", erratic)),
        (trial, finished_run(tmp_path / "f", scores)),
    ]
    verdict, because, points, p = list(verdicts(STUDY, Outcome(runs, {})).rows[0])[2:]
    assert (verdict, because) == ("no", "standalone is ahead")
    assert points == pytest.approx(-1)
    assert p == pytest.approx(2 * 2 / 2**8, abs=0.004)


def test_the_correction_counts_methods_that_are_not_run_yet_but_no_impossible_ones(
    tmp_path: Path, outcome: Outcome
) -> None:
    """Five clients give p = 1/16; it is doubled if a second method may still be run."""
    trial = outcome.runs[1][0]
    runs = [
        (replace(trial, label="standalone"), finished_run(tmp_path / "s", [0.6] * 5)),
        (trial, finished_run(tmp_path / "f", [0.5] * 5)),
    ]

    def p(**missing: str) -> object:
        reasons = {f"here: {label}, seed 0": reason for label, reason in missing.items()}
        return verdicts(STUDY, Outcome(runs, reasons)).rows[0][5]

    assert p(fd=NOT_RUN) == pytest.approx(2 / 16, abs=0.01)
    assert p(fd="cannot") == pytest.approx(1 / 16, abs=0.005)


def test_a_claim_is_only_about_the_methods_that_it_names(tmp_path: Path, outcome: Outcome) -> None:
    table = STUDY.model_dump(by_alias=True)
    table["claim"] = [{"text": "ahead of alone", "highest": "fedgh", "over": ["standalone"]}]
    better = (replace(outcome.runs[0][0], label="fd"), finished_run(tmp_path / "fd", [1.0] * 8))
    runs = Outcome([*outcome.runs, better], {})
    verdict, because, *_ = list(verdicts(Study.model_validate(table), runs).rows[0])[2:]
    assert (verdict, because) == ("yes", "least certain against standalone")


def test_a_claim_fails_if_the_other_method_is_ahead(outcome: Outcome) -> None:
    swapped = Outcome(
        [
            (replace(trial, label="fedgh" if trial.label == "standalone" else "standalone"), run)
            for trial, run in outcome.runs
        ],
        {},
    )
    verdict, _, points, _ = list(verdicts(STUDY, swapped).rows[0])[2:]
    assert verdict == "no"
    assert points == pytest.approx(-10)


def test_a_difference_that_is_not_significant_is_within_noise(
    tmp_path: Path, outcome: Outcome
) -> None:
    trial = outcome.runs[1][0]
    runs = [
        (replace(trial, label="standalone"), finished_run(tmp_path / "c", [0.5, 0.7, 0.5, 0.7])),
        (trial, finished_run(tmp_path / "d", [0.7, 0.5, 0.6, 0.7])),
    ]
    cells = [row[2] for row in verdicts(STUDY, Outcome(runs, {})).rows]
    assert cells == ["ahead, within noise", "not run", "within noise", "not run"]


def test_a_table_as_markdown_and_csv() -> None:
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
    assert Column("size", 4, significant=True).show(0.000012345) == "1.234e-05"
    assert Column("size", 4, significant=True).show(12.0) == "12"
    assert list(csv.reader(io.StringIO(sheet.csv()))) == [
        ["name", "size", "gain"],
        ["a|b", "1234.56", "0.126"],
        ["c", "", ""],
    ]


def test_a_missing_seed_is_shown_with_its_reason(tmp_path: Path, outcome: Outcome) -> None:
    trial, run = outcome.runs[1]
    two = Outcome([(trial, run)], {"here: fedgh, seed 1": "training diverged"})
    line = lines(STUDY, two, 2)[2]
    assert (line.method, line.missing_reason) == ("fedgh", "training diverged")
    assert main_sheet([line]).rows[0][-1] == "1 of 2"


def test_only_seeds_that_both_methods_have_are_compared(tmp_path: Path, outcome: Outcome) -> None:
    """FedGH has a second, better seed, which is ignored because Standalone does not have it."""
    trial = outcome.runs[1][0]
    lucky = (replace(trial, seed=1), finished_run(tmp_path / "lucky", [1.0] * 8))
    table = verdicts(STUDY, Outcome([*outcome.runs, lucky], {}))
    assert [row[4] for row in table.rows[::2]] == [pytest.approx(10), pytest.approx(10)]
    apart = Outcome([outcome.runs[0], lucky], {})
    assert [row[2] for row in verdicts(STUDY, apart).rows] == ["not run"] * 4
    because = [row[3] for row in verdicts(STUDY, apart).rows[::2]]
    assert because == ["no other method has a seed in common", "they have no seed in common"]


def test_the_range_test_accounts_for_the_number_of_methods() -> None:
    """A test of the lowest of eight against the highest would be significant far too often."""
    rng = np.random.default_rng(0)
    p = [range_test(rng.normal(0, 1, (8, 10))) for _ in range(40)]
    assert np.mean(np.array(p) < 0.05) < 0.2
    assert 0.3 < np.mean(p) < 0.7
    one_is_better = rng.normal(0, 1, (8, 10)) + np.eye(8)[:, :1] * 3
    assert range_test(one_is_better) < 0.01
    assert range_test(np.ones((3, 4))) == 1.0
    assert range_test(np.ones((3, 0))) == 1.0


def test_a_verdict_is_corrected_for_the_number_of_methods(tmp_path: Path, outcome: Outcome) -> None:
    """Eight methods are slightly ahead: a single one would count, one of eight does not."""
    trial = outcome.runs[1][0]
    base = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    ahead = [0.52, 0.52, 0.52, 0.52, 0.52, 0.52, 0.52, 0.51]
    study = STUDY.model_copy(update={"methods": ["fedgh", *"abcdefgh"]})
    runs = [(trial, finished_run(tmp_path / "fedgh", base))]
    runs += [
        (replace(trial, label=x), finished_run(tmp_path / f"run-{x}", ahead)) for x in "abcdefgh"
    ]
    verdict, _, points, p = list(verdicts(study, Outcome(runs, {})).rows[0])[2:]
    assert verdict == "not ahead, within noise"
    assert points == pytest.approx(-1.875)
    assert p == pytest.approx(8 * 2 / 2**8, abs=0.01)
