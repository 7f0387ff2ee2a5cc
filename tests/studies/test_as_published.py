"""The worth of each deviation of the published code, from records worked by hand."""

from typing import Any

import pytest

from fedgh.core.records import Summary
from fedgh.studies import as_published
from fedgh.studies.reproduce import Reproduction
from fedgh.studies.result import partitions
from fedgh.studies.study import study
from fedgh.studies.sweep import Outcome
from tests.support.records import a_round, a_summary

Rounds = list[tuple[list[int], list[float | None]]]


class Run:
    """A finished run with these accuracies of four clients, of which two are selected."""

    def __init__(self, rounds: Rounds, linear_accuracy: float | None = None) -> None:
        self.rounds = rounds
        self.linear_accuracy = linear_accuracy

    def summary(self) -> Summary:
        return a_summary(linear_accuracy=self.linear_accuracy)

    def records(self) -> list[Any]:
        return [
            a_round(number, 0.5, participants=selected, accuracy_per_client=accuracies)
            for number, (selected, accuracies) in enumerate(self.rounds, 1)
        ]


ROUNDS: Rounds = [
    ([0, 1], [0.9, 0.7, 0.5, 0.5]),  # all: 65, selected: 80
    ([2, 3], [0.9, 0.7, 0.6, 0.6]),  # all: 70, selected: 60
    ([0, 2], [0.8, 0.7, 0.5, 0.6]),  # all: 65, selected: 65
]


def test_readings_are_means_over_all_or_selected_clients_in_the_last_or_best_round() -> None:
    found = as_published.readings(Run(ROUNDS))  # type: ignore[arg-type]
    assert found.last_all == pytest.approx(65)
    assert found.last_selected == pytest.approx(65)
    assert found.best_all == pytest.approx(70)
    assert found.best_selected == pytest.approx(80)


def test_a_deviation_is_worth_its_difference_to_the_base_on_the_same_seed() -> None:
    trials = {
        (trial.setting, trial.label): trial
        for trial in Reproduction("as-published", "smoke", [0]).trials()
    }
    better: Rounds = [(selected, [0.85] * 4) for selected, _ in ROUNDS]
    runs = [
        (trials["as-published-n10", "standalone"], Run(ROUNDS)),
        (trials["as-published-n10-split", "standalone"], Run(better)),
        (trials["as-published-n10-all", "standalone"], Run(better)),
    ]
    outcome = Outcome(runs, {})  # type: ignore[arg-type]
    worths, levels = as_published.sheets(study("as-published"), outcome)
    cells = {str(row[0]): row[1] for row in worths.rows}
    assert cells["mean over the selected clients"] == pytest.approx(0)
    assert cells["best round"] == pytest.approx(5)
    assert cells["best round, mean over the selected clients"] == pytest.approx(15)
    assert cells["40,000 / 10,000 / 10,000 images"] == pytest.approx(20)
    assert cells["published partition"] is None
    (first, *_) = levels.rows
    assert first[1:7] == ["standalone", *map(pytest.approx, (65, 65, 70, 80)), 96.62]


def test_settings_of_two_federations_with_the_same_title_have_rows_of_their_own() -> None:
    names = ("as-published-n10-partition", "as-published-n50-partition")
    trials = {
        trial.setting: trial
        for trial in Reproduction("as-published", "smoke", [42]).trials(["*-partition"])
    }
    runs = [
        (trials[name], Run(ROUNDS, share)) for name, share in zip(names, (0.9, 0.8), strict=True)
    ]
    outcome = Outcome(runs, {})  # type: ignore[arg-type]
    assert partitions(study("as-published"), outcome).rows == [
        ["N = 10, five networks: published partition", 90],
        ["N = 50, C = 20%, one network: published partition", 80],
    ]


def test_the_settings_of_a_federation_differ_from_its_base() -> None:
    settings = {setting.name: setting for setting in study("as-published").settings}
    for setting in settings.values():
        if setting.base is not None:
            base = settings[setting.base]
            assert set(base.set) < set(setting.set)
            assert base.quick == setting.quick
