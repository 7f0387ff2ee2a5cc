"""The folder of a comparison is read again: validated, with every missing run and its reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgh.errors import RunError
from fedgh.runs.folder import RunFolder
from fedgh.studies import sweep_folder
from fedgh.studies.sweep import NOT_RUN, Outcome, Trial, plan_comparison
from fedgh.studies.sweep_sheets import differences_sheet, results_sheet, search_sheet, sheets
from fedgh.tables import Measured
from tests.support.records import a_round, a_summary
from tests.support.tiny import a_run

(TRIAL,) = plan_comparison("demo", "fedgh", [0])
ABOUT = {"reference": "fedgh", "last": 1, "seeds": [0, 1]}


def a_finished_run(path: Path, seed: int, accuracies: list[float]) -> RunFolder:
    """Return a finished run of one round with these accuracies of clients."""
    run = a_run(path)
    mean = sum(accuracies) / len(accuracies)
    worst = {"accuracy_worst": min(accuracies)}
    each = {"accuracy_per_client": accuracies, "validation_accuracy_per_client": accuracies}
    run.append(a_round(1, mean, **each, **worst))
    scores = {"final_accuracy": mean, "final_validation_accuracy": None}
    final = {f"final_{name}": score for name, score in worst.items()}
    counts = {"rounds": 1, "evaluated_clients": len(accuracies), "best_accuracy": mean}
    run.write_summary(a_summary(seed=seed, **scores, **final, **counts))
    return run


def outcome(folder: Path, scores: dict[str, list[list[float]]]) -> Outcome:
    """Return finished runs with these accuracies by label, seed and client."""
    runs: list[tuple[Trial, RunFolder]] = []
    for label, by_seed in scores.items():
        for seed, accuracies in enumerate(by_seed):
            trial = replace(TRIAL, label=label, seed=seed)
            runs.append((trial, a_finished_run(folder / trial.folder, seed, accuracies)))
    return Outcome(runs, {"fml, seed 1": "it diverged"})


SCORES = {
    "fedgh": [[0.5, 0.6], [0.7, 0.8]],
    "fd": [[0.6, 0.7], [0.8, 0.9]],
    "fedavg": [[0.5, 0.7], [0.7, 0.9]],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep_folder.write(tmp_path, "comparison", outcome(tmp_path, SCORES), ABOUT)
    return tmp_path


def change(folder: Path, **changes: Any) -> None:
    file = folder / "comparison.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_comparison_is_read_as_it_was_written(folder: Path) -> None:
    sweep = sweep_folder.read(folder)
    assert (sweep.reference, sweep.last, sweep.seeds, sweep.searched) == ("fedgh", 1, [0, 1], False)
    assert [*sweep.runs] == [*SCORES]
    assert all([*runs] == [0, 1] for runs in sweep.runs.values())
    assert sweep.missing == {"fml, seed 1": "it diverged"}
    written = json.loads((folder / "comparison.json").read_text())["rows"]
    assert [row.p_value for row in sweep.rows] == [row["p_value"] for row in written]


def test_both_tests_and_their_corrections_worked_by_hand(folder: Path) -> None:
    reference, fd, fedavg = sweep_folder.read(folder).rows
    assert (reference.pairs, reference.p_holm, reference.p_seeds_holm) == (0, None, None)
    # Over clients and seeds: four differences of a tenth, 2 of 16 patterns. Over seeds: 2 of 4.
    assert (fd.pairs, fd.paired_seeds) == (4, 2)
    assert [fd.p_value, fd.p_seeds] == pytest.approx([2 / 16, 2 / 4])
    # FedAvg: differences of 0 and a tenth in each seed. Four of 16 patterns are as extreme, and
    # twice as many in both directions; its means over seeds agree again.
    assert [fedavg.difference, fedavg.p_value] == pytest.approx([0.05, 8 / 16])
    assert [fd.p_holm, fedavg.p_holm] == pytest.approx([2 * 2 / 16, 8 / 16])
    assert [fd.p_seeds_holm, fedavg.p_seeds_holm] == [1.0, 1.0]


def test_a_difference_is_that_of_the_accuracies_and_in_the_middle_of_its_interval(
    tmp_path: Path,
) -> None:
    """Also if the seeds have different numbers of evaluated clients: every seed counts the same."""
    scores = {
        "fedgh": [[0.5, 0.6], [0.2] * 6],
        "fd": [[0.51, 0.61], [0.2, 0.22, 0.24, 0.2, 0.22, 0.24]],
    }
    sweep = sweep_folder.write(tmp_path, "comparison", outcome(tmp_path, scores), ABOUT)
    fedgh, fd = sweep.rows
    assert fedgh.accuracy is not None
    assert fd.accuracy is not None
    assert fd.difference_low is not None
    assert fd.difference_high is not None
    assert fd.difference == pytest.approx(0.015)
    assert fd.difference == pytest.approx(fd.accuracy - fedgh.accuracy)
    assert fd.difference == pytest.approx((fd.difference_low + fd.difference_high) / 2)


def test_the_tables_say_which_test_is_which_and_what_seeds_can_show(folder: Path) -> None:
    sweep = sweep_folder.read(folder)
    results, differences = sheets(sweep)
    fedgh, fd, _ = results.rows
    assert isinstance(fedgh[1], Measured)
    assert [fedgh[1].mean, fedgh[1].std] == pytest.approx([65, 14.142], abs=1e-3)
    assert isinstance(fd[1], Measured)
    assert fd[1].best
    assert fd[1].marks == ""
    assert "(4 pairs, which are not independent), with Holm's correction for 2 comparisons" in (
        results.note
    )
    assert "over 2 seeds no difference can be significant: the smallest p that is possible" in (
        results.note
    )
    titles = [column.title for column in differences.columns]
    assert [dict(zip(titles, row, strict=True))["pairs"] for row in differences.rows] == [4, 4]
    assert (
        "With 2 seeds the smallest p that is possible is 0.5, 1 corrected; a significant one"
        in (differences.note)
    )
    assert "needs 7 seeds" in differences.note


def test_a_significant_difference_is_marked_in_both_tests(tmp_path: Path) -> None:
    """Ten clients whose accuracy rises by a tenth in each of six seeds."""
    low = [[0.3 + seed / 100 + client / 50 for client in range(10)] for seed in range(6)]
    high = [[accuracy + 0.1 for accuracy in accuracies] for accuracies in low]
    found = outcome(tmp_path, {"fedgh": low, "fd": high})
    sheet = results_sheet(sweep_folder.write(tmp_path, "comparison", found, ABOUT))
    assert [row[1].marks for row in sheet.rows if isinstance(row[1], Measured)] == ["", "*†"]
    assert "†: p < 0.05 in the same test over the means of 6 seeds" in sheet.note


def test_one_seed_has_no_deviation_and_says_so(tmp_path: Path) -> None:
    found = outcome(tmp_path, {label: by_seed[:1] for label, by_seed in SCORES.items()})
    sweep = sweep_folder.write(tmp_path, "comparison", found, ABOUT | {"seeds": [0]})
    sheet = results_sheet(sweep)
    assert "with one seed; so there is no standard deviation" in sheet.note
    assert sheet.columns[1].show(sheet.rows[0][1]) == "55.0"
    differences = differences_sheet(sweep)
    assert differences is not None
    assert "With 1 seed the smallest p that is possible is 1" in differences.note


def test_a_search_shows_test_data_only_of_chosen_settings(tmp_path: Path) -> None:
    scores = {"fedgh local.lr=1": [[0.9, 0.9]], "fedgh local.lr=2": [[0.5, 0.5]]}
    scores["fd local.lr=1"] = [[0.6, 0.6]]
    about = {"methods": "fedgh,fd", "seeds": [0]}
    sweep_folder.write(tmp_path, "search", outcome(tmp_path, scores), about)
    sweep = sweep_folder.read(tmp_path)
    assert sweep.searched
    assert sweep.chosen == {"fedgh local.lr=1", "fd local.lr=1"}
    sheet = search_sheet(sweep)
    assert {row[0]: row[3] is not None for row in sheet.rows} == {
        "fedgh local.lr=1": True,
        "fedgh local.lr=2": False,
        "fd local.lr=1": True,
    }
    assert [row.difference for row in sweep.rows] == [None] * 3


def test_a_damaged_or_deleted_run_takes_its_label_out_with_the_reason(folder: Path) -> None:
    (folder / "fd-seed1" / "summary.json").unlink()
    (folder / "fedavg-seed0" / "rounds.jsonl").write_text("")
    (folder / "fedavg-seed0" / "checkpoint" / "server.safetensors").unlink()
    sweep = sweep_folder.read(folder)
    assert [*sweep.runs] == ["fedgh"]
    assert "has not finished" in sweep.missing["fd, seed 1"]
    assert "0 of 1 rounds" in sweep.missing["fedavg, seed 0"]


def test_the_table_names_the_runs_without_a_result_also_the_reference(folder: Path) -> None:
    assert "Runs without a result: fml, seed 1." in results_sheet(sweep_folder.read(folder)).note
    (folder / "fedgh-seed1" / "summary.json").unlink()
    note = results_sheet(sweep_folder.read(folder)).note
    assert "fedgh, seed 1. Without fedgh there are no differences." in note


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "", ".", "..", "a/b"])
def test_only_folders_in_the_folder_are_read(folder: Path, name: str) -> None:
    change(folder, runs=[{"label": "fedgh", "seed": 0, "folder": name}])
    sweep = sweep_folder.read(folder)
    assert sweep.runs == {}
    assert "is no run folder in" in sweep.missing["fedgh, seed 0"]


def test_a_symbolic_link_is_not_followed(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "run"
    (folder / "fd-seed0").rename(elsewhere)
    (folder / "fd-seed0").symlink_to(elsewhere)
    assert "is no run folder in" in sweep_folder.read(folder).missing["fd, seed 0"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"runs": 1, "seeds": [], "missing": {}}', "[" * 100_000, "\xff"]
)
def test_an_invalid_file_is_refused_with_one_line(folder: Path, text: str) -> None:
    (folder / "comparison.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=r"comparison\.json") as caught:
        sweep_folder.read(folder)
    assert "\n" not in str(caught.value)


def test_a_label_with_a_failed_run_has_no_result_but_one_that_was_not_run_has(
    tmp_path: Path,
) -> None:
    found = outcome(tmp_path, SCORES)
    missing = {"fd, seed 2": "it diverged", "fedgh, seed 2": NOT_RUN}
    kept = Outcome(found.runs, missing).without_failed()
    assert {trial.label for trial, _ in kept.runs} == {"fedgh", "fedavg"}
