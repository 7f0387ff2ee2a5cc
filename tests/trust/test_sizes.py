"""A few characters in a folder from elsewhere ask for gigabytes or hours; no command gives them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import inside
from tests.support.hostile import cheap
from tests.trust.commands import READERS, SMALL, Place, make


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make(tmp_path_factory.mktemp("elsewhere") / "place", "fedgh")


SETTINGS: list[dict[str, Any]] = [
    {"federation.clients": 10**9},
    {"model.rep_dim": 20_000_000},
    {"model.extractors": ["resnet18"] * 500},
    {"local.epochs": 10**9},
    {"data.name": "private", "data.classes": ["a", "b"], "data.shape": [1, 6000, 6000]},
    {"data.name": "private", "data.classes": ["a"], "federation.clients": 2 * 10**8},
    {"data.image_size": 10**6, "data.name": "image-folder"},
    {"public.samples": 10**12, "public.name": "held-out"},
]


def cases(changes: list[dict[str, Any]]) -> Iterator[object]:
    """Every change for every command; the ordinary tests take some of each."""
    for i, change in enumerate(changes):
        for j, command in enumerate(READERS):
            marks = [] if (i + j) % 3 == 0 else [pytest.mark.faults]
            yield pytest.param(change, command, marks=marks, id=f"{','.join(change)}-{command}")


@pytest.mark.parametrize(("settings", "command"), list(cases(SETTINGS)))
def test_a_small_change_of_the_settings_costs_little(
    settings: dict[str, Any],
    command: str,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostile = place.copy(tmp_path / "place")
    for key, value in settings.items():
        section, _, name = key.partition(".")
        hostile.settings(section, name, value)
    with cheap():
        READERS[command](hostile, monkeypatch)


DATA: list[dict[str, Any]] = [
    *({"shape": [3, 40_000, 40_000]}, {"shape": [10**18]}, {"classes": [""] * 10**6}),
]


@pytest.mark.parametrize(("change", "command"), list(cases(DATA)))
def test_a_small_change_of_the_data_costs_little(
    change: dict[str, Any],
    command: str,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostile = place.copy(tmp_path / "place")
    file = hostile.run / "data.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with cheap():
        READERS[command](hostile, monkeypatch)


@pytest.mark.parametrize("name", ["clients.json", "summary.json", "data.json"])
def test_very_many_parts_of_a_file_cost_little(
    name: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = place.copy(tmp_path / "place")
    (hostile.run / name).write_text(f"[{'{},' * 20_000_000}{{}}]")
    with cheap():
        READERS["clients"](hostile, monkeypatch)
        READERS["compare"](hostile, monkeypatch)


def test_a_sparse_state_is_not_read(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = place.copy(tmp_path / "place")
    (state,) = (hostile.run / "checkpoint").glob("client-000000.*")
    content = state.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["more"] = {"dtype": "U8", "shape": [2**33], "data_offsets": [0, 2**33]}
    text = json.dumps(header).encode()
    with state.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2**33)
    with cheap():
        assert READERS["predict"](hostile, monkeypatch) == 1
    assert "it has more than" in capsys.readouterr().err


def test_a_run_of_a_sweep_is_not_written_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("runs", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runs" / "fedgh-seed0").symlink_to(tmp_path / "elsewhere")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    words = ["compare", "demo", "--methods", "fedgh", "--seeds", "0", *settings]
    assert inside(monkeypatch, *words, "--out", str(tmp_path / "runs")) == 1
    assert "is a symbolic link" in capsys.readouterr().err
    assert list((tmp_path / "elsewhere").iterdir()) == []
    shutil.rmtree(tmp_path / "runs")
