"""The summary and the guide about newcomers agree with the committed cases."""

import json
import re

import pytest

from benchmarks.newcomer import ARMS, RESULTS, epochs_needed, summary

DOCUMENT = json.loads((RESULTS / "newcomer-digits.json").read_text(encoding="utf-8"))
PAGE = (RESULTS.parent / "guides" / "newcomer.md").read_text(encoding="utf-8")


def test_the_committed_summary_follows_from_the_committed_cases() -> None:
    assert summary(DOCUMENT["cases"]) == DOCUMENT["summary"]


def test_the_guide_has_the_numbers_of_the_summary() -> None:
    rows = re.findall(r"^\| (?:epochs|accuracy|after).*? \| (.*) \|$", PAGE, re.M)
    for text, row in zip(rows, DOCUMENT["summary"]["rows"], strict=True):
        *means, p_untrained, p_none = (float(cell) for cell in text.split(" | "))
        scale = 1 if "epochs to reach" in row["what"] else 100
        assert means == pytest.approx([scale * row[arm] for arm in ARMS], abs=0.051)
        assert p_untrained == pytest.approx(row["p_untrained_header"], abs=0.0051)
        assert p_none == pytest.approx(row["p_without_header"], abs=0.0051)
    never = [DOCUMENT["summary"]["never"][arm] for arm in ARMS]
    assert f"| {never[0]} | {never[1]} | {never[2]} |" in PAGE


def test_epochs_needed_is_the_first_epoch_at_the_goal() -> None:
    assert epochs_needed([0.1, 0.5, 0.4, 0.9], 0.5) == 1
    assert epochs_needed([0.1, 0.2], 0.5) is None


def test_the_summary_shows_the_benefit_of_a_header() -> None:
    """Ten newcomers reach the goal after one epoch with a header, and never without one."""
    fast, never = [0.0, *[1.0] * 20], [0.0] * 21
    case = {"others": 0.9, "with_header": fast, "untrained_header": fast, "without_header": never}
    result = summary([case] * 10)
    assert result["never"] == {"with_header": 0, "untrained_header": 0, "without_header": 10}
    first = result["rows"][0]
    assert (first["with_header"], first["without_header"]) == (1, 21)
    assert first["p_without_header"] < 0.01
    assert first["p_untrained_header"] == 1
