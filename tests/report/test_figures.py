"""Charts are written as files in the format of the suffix."""

from pathlib import Path

import pytest

from fedgh.errors import ConfigError
from fedgh.report.charts import accuracy_over_rounds
from fedgh.report.figures import save
from fedgh.runs.read import NamedRun
from tests.report.parts import alone


@pytest.mark.parametrize(
    ("suffix", "begins"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_the_suffix_chooses_the_format(
    runs: list[NamedRun], tmp_path: Path, suffix: str, begins: bytes
) -> None:
    path = tmp_path / f"figure.{suffix}"
    save(accuracy_over_rounds(alone(runs)), path)
    assert path.read_bytes().startswith(begins)


def test_an_unknown_suffix_is_refused(runs: list[NamedRun], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.svg, \.png or \.pdf"):
        save(accuracy_over_rounds(alone(runs)), tmp_path / "figure.gif")
