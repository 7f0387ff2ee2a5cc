"""The tables of the study `pays`: gains over training alone, worked by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.studies.pays import claim_sheets, entries, gains, main_sheet
from fedgh.studies.plan import plan, select
from fedgh.studies.statistics import PairedLead, lead_over
from fedgh.studies.study import Study
from fedgh.studies.sweep import NOT_RUN, Outcome, Trial, plan_comparison
from fedgh.tables import Sheet
from tests.support.records import a_round
from tests.support.tiny import a_run


def small(*leads: dict[str, Any]) -> Study:
    """Return a study with two settings; the second one lacks a method."""
    return Study.model_validate(
        {
            "title": "Pays",
            "source": "",
            "about": "",
            "kind": "pays",
            "methods": ["standalone", "fedproto", "fedgh"],
            "lead": [*leads],
            "setting": [
                {"name": "few", "title": "D, A, few", "experiment": "demo"},
                {
                    "name": "many",
                    "title": "D, A, many",
                    "experiment": "demo",
                    "methods": ["standalone", "fedgh"],
                },
            ],
        }
    )


def finished_run(
    folder: Path,
    method: str,
    seed: int,
    own: list[float | None],
    on_all: list[float | None] | None = None,
    sent: int = 0,
) -> tuple[Trial, RunFolder]:
    """Return a run of two rounds in the setting `few`, whose first round was better."""
    (trial,) = plan_comparison("demo", "fedgh", [seed], [f"federation.clients={len(own)}"])
    trial = replace(trial, setting="few", label=method)
    run = a_run(folder / f"{method}-{seed}")
    run.append(a_round(1, accuracy_per_client=[1.0] * len(own), bytes_total=sent // 2))
    last = a_round(2, bytes_total=sent, accuracy_per_client=own)
    per_client = last.per_client | {"global_accuracy": on_all}
    run.append(last.model_copy(update={"per_client": per_client}))
    return trial, run


def table(sheet: Sheet) -> list[dict[str, Any]]:
    titles = [column.title for column in sheet.columns]
    return [dict(zip(titles, row, strict=True)) for row in sheet.rows]


def test_the_lead_of_several_seeds_worked_by_hand() -> None:
    """Leads 2, 4 and 9 points: their mean is 5, deviations -3, -1, 4, so s² = 26 / 2 = 13."""
    ours = {
        0: np.array([0.52, 0.62]),
        1: np.array([0.56, 0.62]),
        2: np.array([0.60, 0.68]),
        7: np.array([1.0, 1.0]),  # a seed that the other method does not have
    }
    theirs = {seed: np.array([0.5, 0.6]) for seed in (2, 1, 0)}
    theirs[2] = np.array([0.55, 0.55])
    lead = lead_over(ours, theirs)
    assert lead is not None
    assert lead.mean == pytest.approx(0.05)
    assert lead.error == pytest.approx(0.01 * (13 / 3) ** 0.5)
    assert lead.over == "3 seeds"


def test_clients_of_several_seeds_are_not_treated_as_independent() -> None:
    """All clients of a seed gain the same: two observations 0.1 apart, not eight."""
    alone = {0: np.zeros(4), 1: np.zeros(4)}
    lead = lead_over({0: np.full(4, 0.1), 1: np.full(4, 0.2)}, alone)
    assert lead is not None
    assert lead.mean == pytest.approx(0.15)
    assert lead.error == pytest.approx(0.05)


def test_the_standard_error_of_one_seed_is_over_its_clients() -> None:
    """Leads 0, 2, 4 points: s = 2, so the error is 2 / √3. The fourth client was not evaluated."""
    ours = {0: np.array([0.5, 0.52, 0.54, np.nan])}
    lead = lead_over(ours, {0: np.array([0.5, 0.5, 0.5, 0.5])})
    assert lead is not None
    assert lead.mean == pytest.approx(0.02)
    assert lead.error == pytest.approx(0.02 / 3**0.5)
    assert lead.over == "3 clients"


def test_a_lead_is_none_without_common_clients_and_has_no_error_with_one() -> None:
    one = np.array([0.5])
    assert lead_over({0: one}, {1: one}) is None
    assert lead_over({0: np.array([np.nan])}, {0: one}) is None
    assert lead_over({0: one + 0.25}, {0: one}) == PairedLead(0.25, None, "1 client")


def test_the_table_of_gains_worked_by_hand(tmp_path: Path) -> None:
    runs = [
        finished_run(tmp_path, "standalone", 0, [0.5, 0.7], [0.1, 0.2]),
        finished_run(tmp_path, "standalone", 1, [0.4, 0.6], [0.1, 0.2]),
        finished_run(
            tmp_path, "fedgh", 0, [0.6, 0.8], [0.4, 0.5], sent=8192
        ),  # 10 points, 30 points
        finished_run(
            tmp_path, "fedgh", 1, [0.6, 0.8], [0.3, 0.6], sent=8192
        ),  # 20 points, 30 points
        finished_run(
            tmp_path, "fedproto", 0, [0.5, 0.9], sent=2048
        ),  # 0 and 20 points; without global accuracy, as in old runs
    ]
    missing = {"few: fedproto, seed 1": NOT_RUN, "many: fedgh, seed 0": "training diverged"}
    rows = table(main_sheet(entries(small(), Outcome(runs, missing)), seeds=2))
    alone, fedproto, fedgh, many_alone, many_fedgh = rows
    assert [row["method"] for row in rows[3:]] == [
        "standalone",
        "fedgh",
    ]  # fedproto is not in this setting

    assert alone["own data, %"] == pytest.approx(55)
    assert alone["gain, own data"] is None
    assert alone["s.e. over"] is None

    assert fedgh["own data, %"] == pytest.approx(70)
    assert fedgh["gain, own data"] == pytest.approx(15)
    assert fedgh["± s.e., own data"] == pytest.approx(5)  # (20 - 10) / √2 / √2
    assert fedgh["all classes, %"] == pytest.approx(45)
    assert fedgh["gain, all classes"] == pytest.approx(30)
    assert fedgh["± s.e., all classes"] == pytest.approx(0, abs=1e-9)
    assert fedgh["KB per client"] == pytest.approx(8192 / 2 / 1024)
    assert (fedgh["seeds"], fedgh["s.e. over"]) == ("2 of 2", "2 seeds")

    assert fedproto["gain, own data"] == pytest.approx(10)
    assert fedproto["± s.e., own data"] == pytest.approx(10)  # s = 20 / √2, over √2 clients
    assert fedproto["all classes, %"] is None
    assert (fedproto["seeds"], fedproto["s.e. over"]) == ("1 of 2", "2 clients")

    assert many_alone["own data, %"] == "not run"
    assert many_fedgh["own data, %"] == "no result"


def test_both_samples_of_standard_errors_are_named_if_they_differ(tmp_path: Path) -> None:
    runs = [
        finished_run(tmp_path, "standalone", 0, [0.5, 0.7]),
        finished_run(tmp_path, "standalone", 1, [0.5, 0.7], [0.1, 0.2]),
        finished_run(tmp_path, "fedgh", 0, [0.6, 0.8]),
        finished_run(tmp_path, "fedgh", 1, [0.6, 0.8], [0.3, 0.5]),
    ]
    fedgh = table(main_sheet(entries(small(), Outcome(runs, {})), seeds=2))[2]
    assert fedgh["s.e. over"] == "2 seeds; all classes 2 clients"


AHEAD = {"text": "ahead", "of": "fedgh", "over": ["standalone"], "settings": ["f*"], "errors": 2}
NOT_BEHIND = {"text": "not behind", "of": "fedgh", "over": ["standalone"], "points": -1}
FAR_ON_ALL = {"text": "far", "of": "fedgh", "settings": ["few"], "where": "all", "points": 20}


def claims_with(tmp_path: Path, *leads: list[float]) -> dict[str, dict[str, Any]]:
    """Return the claims if FedGH has these leads: a list for each seed, one lead per client."""
    runs = []
    for seed, lead in enumerate(leads):
        alone: list[float | None] = [0.5] * len(lead)
        ahead: list[float | None] = [0.5 + each for each in lead]
        runs.append(finished_run(tmp_path, "standalone", seed, alone, alone))
        runs.append(finished_run(tmp_path, "fedgh", seed, ahead, ahead))
    study = small(AHEAD, NOT_BEHIND, FAR_ON_ALL)
    claims, _ = claim_sheets(study, entries(study, Outcome(runs, {})))
    return {row["claim"]: row for row in table(claims)}


def test_a_lead_has_to_exceed_its_standard_errors(tmp_path: Path) -> None:
    """Seeds 3 and 5 points ahead: 4 ± 1, more than two errors. Then 1 and 3.01: 2.005 ± 1.005."""
    claims = claims_with(tmp_path / "a", [0.03, 0.03], [0.05, 0.05])
    assert (claims["ahead"]["holds?"], claims["ahead"]["comparisons that confirm it"]) == (
        "yes",
        "1 of 1",
    )
    assert claims["ahead"]["narrowest lead"] == pytest.approx(4)
    assert claims["ahead"]["± s.e."] == pytest.approx(1)
    assert claims["ahead"]["where"] == "D, A, few: standalone"
    assert claims_with(tmp_path / "b", [0.01, 0.01], [0.0301, 0.0301])["ahead"]["holds?"] == "no"
    assert claims_with(tmp_path / "c", [0.01])["ahead"]["holds?"] == "too few runs"


def test_a_lead_equal_to_its_minimum_in_points_holds(tmp_path: Path) -> None:
    assert claims_with(tmp_path / "a", [0.2, 0.2])["far"]["holds?"] == "yes, of those run"
    assert claims_with(tmp_path / "b", [0.19, 0.19])["far"]["holds?"] == "no"
    behind = claims_with(tmp_path / "c", [-0.02, 0.0])["not behind"]
    assert (behind["holds?"], behind["without a result"]) == ("yes, of those run", 1)
    assert claims_with(tmp_path / "d", [-0.02, -0.01])["not behind"]["holds?"] == "no"


def test_every_comparison_of_a_claim_is_listed(tmp_path: Path) -> None:
    study = small(NOT_BEHIND, FAR_ON_ALL)
    runs = [
        finished_run(tmp_path, "standalone", 0, [0.5, 0.5], [0.1, 0.1]),
        finished_run(tmp_path, "fedproto", 0, [0.5, 0.5], [0.3, 0.3]),
        finished_run(tmp_path, "fedgh", 0, [0.5, 0.6], [0.4, 0.4]),
    ]
    missing = {"many: fedgh, seed 0": "training diverged", "many: standalone, seed 0": NOT_RUN}
    _, settings = claim_sheets(study, entries(study, Outcome(runs, missing)))
    assert [(row["over"], row["holds?"]) for row in table(settings)] == [
        ("standalone", "yes"),
        ("standalone", "no result"),  # in the setting `many`
        ("standalone", "yes"),  # 30 points over all classes
        ("fedproto", "no"),  # 10
    ]


def test_claims_without_runs_are_not_run() -> None:
    study = small(AHEAD, NOT_BEHIND)
    claims, _ = claim_sheets(study, entries(study, Outcome([], {})))
    assert [row["holds?"] for row in table(claims)] == ["not run", "not run"]
    assert all(gain is None for _, gain in gains(entries(study, Outcome([], {})), "own"))


def test_a_damaged_run_is_named_in_the_error(tmp_path: Path) -> None:
    trial, run = finished_run(tmp_path, "fedgh", 0, [0.5, 0.5])
    run.append(a_round(3, accuracy_per_client=[0.5]))
    with pytest.raises(RunError, match="fedgh-0 does not have the values of this study"):
        entries(small(), Outcome([(trial, run)], {}))


def test_a_setting_runs_only_its_own_methods() -> None:
    study = small()
    runs = [(trial.setting, trial.label) for trial in plan(study, "smoke", [0])]
    assert runs == [
        *(("few", method) for method in study.methods),
        *(("many", method) for method in ("standalone", "fedgh")),
    ]
    part = plan(select(study, ["fedproto", "fedgh"]), "smoke", [0])
    assert [(trial.setting, trial.label) for trial in part] == [
        ("few", "fedproto"),
        ("few", "fedgh"),
        ("many", "fedgh"),
    ]
    with pytest.raises(ConfigError, match="fedproto is not run in many"):
        select(study, ["many", "fedproto"])


def test_tuned_overrides_apply_with_every_budget() -> None:
    setting = small().settings[0].model_copy(update={"tuned": ["local.batch_size=8"]})
    study = small().model_copy(update={"settings": [setting]})
    sizes = {
        trial.config.local.batch_size
        for budget in ("smoke", "quick", "paper")
        for trial in plan(study, budget, [0])
    }
    assert sizes == {8}


@pytest.mark.parametrize(
    ("lead", "message"),
    [
        ({**AHEAD, "errors": None}, "a lead has `points`, `errors` or both"),
        ({**AHEAD, "settings": ["fw"]}, "it matches no setting"),
        ({**NOT_BEHIND, "over": ["fedproto"]}, "or one without all of its methods"),
    ],
)
def test_an_impossible_lead_is_an_error(lead: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(lead)


def test_a_setting_with_a_method_outside_the_study_is_an_error() -> None:
    study = small().model_dump(by_alias=True)
    study["setting"][1]["methods"] = ["fd"]
    with pytest.raises(ValueError, match="many: fd is not a method of the study"):
        Study.model_validate(study)
