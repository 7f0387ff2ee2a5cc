"""The summary and the guide about newcomers agree with the committed cases."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import newcomer
from benchmarks.newcomer import ARMS, COMPARED, RESULTS, epochs_needed, summary

DOCUMENT = json.loads((RESULTS / "newcomer-digits.json").read_text(encoding="utf-8"))
PAGE = (RESULTS.parent / "guides" / "newcomer.md").read_text(encoding="utf-8")


def test_the_committed_summary_follows_from_the_committed_cases() -> None:
    assert summary(DOCUMENT["cases"]) == DOCUMENT["summary"]


def test_the_guide_has_the_numbers_of_the_summary() -> None:
    rows = re.findall(r"^\| (?:epochs|accuracy|after).*? \| (.*) \|$", PAGE, re.M)
    for text, row in zip(rows, DOCUMENT["summary"]["rows"], strict=True):
        cells = [float(cell) for cell in text.split(" | ")]
        means, tests = cells[: len(ARMS)], cells[len(ARMS) :]
        scale = 1 if "epochs to reach" in row["what"] else 100
        assert means == pytest.approx([scale * row[arm] for arm in ARMS], abs=0.051)
        expected = [row[f"p_{arm}_{other}"] for arm, other in COMPARED]
        assert tests == pytest.approx(expected, abs=0.00051)
    never = [str(DOCUMENT["summary"]["never"][arm]) for arm in ARMS]
    assert f"| {' | '.join(never)} |" in PAGE


def test_epochs_needed_is_the_first_epoch_at_the_goal() -> None:
    assert epochs_needed([0.1, 0.5, 0.4, 0.9], 0.5) == 1
    assert epochs_needed([0.1, 0.2], 0.5) is None


def test_the_summary_shows_the_benefit_of_a_header() -> None:
    """Ten newcomers reach the goal after one epoch with a header, and never without one."""
    fast, never = [0.0, *[1.0] * 20], [0.0] * 21
    curves = dict(zip(ARMS, (fast, fast, never, fast), strict=True))
    result = summary([{"others": 0.9, **curves}] * 10)
    assert result["never"] == dict(zip(ARMS, (0, 0, 10, 0), strict=True))
    first = result["rows"][0]
    assert (first["with_header"], first["without_header"]) == (1, 21)
    assert first["p_with_header_without_header"] < 0.01
    assert first["p_fedgh_plus_without_header"] < 0.01
    assert first["p_with_header_untrained_header"] == 1


def test_the_command_writes_all_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RESULTS": tmp_path,
        "EXTRACTORS": ("mlp",),
        "ROUNDS": 1,
        "EPOCHS": 1,
        "REPORTED_EPOCHS": (1,),
    }.items():
        monkeypatch.setattr(newcomer, name, value)
    (tmp_path / "figures").mkdir()
    monkeypatch.setattr("sys.argv", ["newcomer", "--newcomers", "1", "--seeds", "0"])
    newcomer.main()
    document = json.loads((tmp_path / "newcomer-digits.json").read_text(encoding="utf-8"))
    (case,) = document["cases"]
    assert all(len(case[arm]) == 2 for arm in ARMS)  # before and after the only round
    assert document["versions"]["torch"]
