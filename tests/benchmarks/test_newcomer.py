"""What docs/results says about newcomers follows from the cases that lie beside it."""

import json
import re

import pytest

from benchmarks.newcomer import ARMS, RESULTS, epochs_needed, summary

DOCUMENT = json.loads((RESULTS / "newcomer-digits.json").read_text(encoding="utf-8"))
PAGE = (RESULTS.parent / "guides" / "newcomer.md").read_text(encoding="utf-8")


def test_the_summary_is_that_of_the_cases() -> None:
    assert summary(DOCUMENT["cases"]) == DOCUMENT["summary"]


def test_the_guide_has_these_numbers() -> None:
    rows = re.findall(r"^\| (?:epochs|accuracy|after).*? \| (.*) \|$", PAGE, re.M)
    for text, row in zip(rows, DOCUMENT["summary"]["rows"], strict=True):
        *means, p_untrained, p_none = (float(cell) for cell in text.split(" | "))
        scale = 1 if "epochs to reach" in row["what"] else 100
        assert means == pytest.approx([scale * row[arm] for arm in ARMS], abs=0.051)
        assert p_untrained == pytest.approx(row["p_untrained_header"], abs=0.0051)
        assert p_none == pytest.approx(row["p_without_header"], abs=0.0051)
    never = [DOCUMENT["summary"]["never"][arm] for arm in ARMS]
    assert f"| {never[0]} | {never[1]} | {never[2]} |" in PAGE


def test_epochs_until_a_goal() -> None:
    assert epochs_needed([0.1, 0.5, 0.4, 0.9], 0.5) == 1
    assert epochs_needed([0.1, 0.2], 0.5) is None


def test_a_header_that_helps_is_seen() -> None:
    """Ten newcomers, of whom each is at the goal at once with the header, and never without."""
    there, never = [0.0, *[1.0] * 20], [0.0] * 21
    case = {"others": 0.9, "with_header": there, "untrained_header": there, "without_header": never}
    found = summary([case] * 10)
    assert found["never"] == {"with_header": 0, "untrained_header": 0, "without_header": 10}
    first = found["rows"][0]
    assert (first["with_header"], first["without_header"]) == (1, 21)
    assert first["p_without_header"] < 0.01
    assert first["p_untrained_header"] == 1
