"""The numbers in the charts of gains equal those of the entries."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedgh.report import pays_charts
from fedgh.studies.pays import Entry, Where
from fedgh.studies.study import Setting
from tests.report.parts import rows

METHODS = ["standalone", "fedproto", "fedgh"]
CASES = [
    Setting(name="a-50", title="A, 2 classes, 50 samples", experiment="demo"),
    Setting(name="a-200", title="A, 2 classes, 200 samples", experiment="demo"),
    Setting(name="b", title="B, N = 10, all samples", experiment="demo"),
]


def entry(case: Setting, method: str, gain: float | None, sent: float) -> Entry:
    """An entry of two seeds whose gains differ by one point; without runs if `gain` is None."""
    scores: dict[Where, dict[int, Any]] = {"own": {}, "all": {}}
    if gain is not None:
        scores["own"] = {seed: np.full(3, 0.5 + gain + 0.01 * seed) for seed in (0, 1)}
        if method == "standalone":
            scores["own"] = {seed: np.full(3, 0.5) for seed in (0, 1)}
    return Entry(case, method, None, scores, [sent] if gain is not None else [])


ENTRIES = [
    *(entry(case, "standalone", 0.0, 0) for case in CASES),
    entry(CASES[0], "fedgh", 0.1, 4000.0),
    entry(CASES[0], "fedproto", -0.0052, 0.0),
    entry(CASES[1], "fedgh", 0.02, 5000.0),
    entry(CASES[2], "fedgh", None, 0.0),
]


def drawn(figures: Sequence[Any], name: str) -> dict[tuple[str, str], dict[str, Any]]:
    (figure,) = (each for each in figures if each.id == name)
    return {(row["method"], row["title"]): row for row in rows(figure.chart)}


def test_cells_show_gain_and_standard_error() -> None:
    figures = pays_charts.figures("pays", METHODS, ENTRIES)
    assert [figure.id for figure in figures] == ["pays-own", "pays-bytes"]  # "all": no result
    cells = drawn(figures, "pays-own")
    first = cells["fedgh", CASES[0].title]
    assert first["gain"] == pytest.approx(10.5)
    assert (first["text"], first["error"], first["over"]) == ("+10.5", "± 0.5", "2 seeds")
    assert cells["fedproto", CASES[0].title]["text"] == "+0.0"  # never -0.0
    assert cells["standalone", CASES[1].title]["text"] == "50.0%"
    missing = cells["fedgh", CASES[2].title]
    assert (missing["text"], missing["error"], "gain" in missing) == ("-", "", False)


def test_the_colours_of_both_maps_are_centred_at_zero() -> None:
    (figure, _) = pays_charts.figures("pays", METHODS, ENTRIES)
    maps = [group for each in figure.chart.to_dict()["vconcat"] for group in each["hconcat"]]
    scales = [each["layer"][0]["encoding"]["color"]["scale"] for each in maps]
    assert len(scales) == 2
    for scale in scales:
        assert scale["domain"] == pytest.approx([-10.5, 10.5])
        assert scale["domainMid"] == 0


def test_methods_that_send_nothing_are_left_of_all_others() -> None:
    points = drawn(pays_charts.figures("pays", METHODS, ENTRIES), "pays-bytes")
    assert {key: point["x"] for key, point in points.items()} == {
        ("fedgh", CASES[0].title): 4000,
        ("fedgh", CASES[1].title): 5000,
        ("fedproto", CASES[0].title): 100,
    }
    first = points["fedgh", CASES[0].title]
    assert (first["low"], first["high"]) == (pytest.approx(10), pytest.approx(11))
    assert first["panel"] == "A, 50 samples"


def test_without_runs_there_is_no_chart() -> None:
    without_runs = [entry(case, method, None, 0.0) for case in CASES for method in METHODS]
    assert pays_charts.figures("pays", METHODS, without_runs) == []
