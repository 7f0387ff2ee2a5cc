"""Settings in a folder of a remote party that request gigabytes or hours are refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgh.runs.folder import RunFolder
from fedgh.runs.sealed import pack
from tests.support.commands import inside
from tests.support.hostile import cheap
from tests.trust.commands import READERS, SMALL, RemoteFolder, make


@pytest.fixture(scope="module")
def remote_folder(tmp_path_factory: pytest.TempPathFactory) -> RemoteFolder:
    return make(tmp_path_factory.mktemp("elsewhere") / "remote_folder", "fedgh")


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
    """Yield every change for every command; most only with the mark `faults`."""
    for i, change in enumerate(changes):
        for j, command in enumerate(READERS):
            marks = [] if (i + j) % 3 == 0 else [pytest.mark.faults]
            yield pytest.param(change, command, marks=marks, id=f"{','.join(change)}-{command}")


@pytest.mark.parametrize(("settings", "command"), list(cases(SETTINGS)))
def test_settings_that_request_much_memory_or_time_are_refused_cheaply(
    settings: dict[str, Any],
    command: str,
    remote_folder: RemoteFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = remote_folder.copy(tmp_path / "remote_folder")
    for key, value in settings.items():
        section, _, name = key.partition(".")
        copy.settings(section, name, value)
    with cheap():
        READERS[command](copy, monkeypatch)


DATA: list[dict[str, Any]] = [
    *({"shape": [3, 40_000, 40_000]}, {"shape": [10**18]}, {"classes": [""] * 10**6}),
]


@pytest.mark.parametrize(("change", "command"), list(cases(DATA)))
def test_data_descriptions_that_request_much_memory_are_refused_cheaply(
    change: dict[str, Any],
    command: str,
    remote_folder: RemoteFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = remote_folder.copy(tmp_path / "remote_folder")
    file = copy.run / "data.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with cheap():
        READERS[command](copy, monkeypatch)


@pytest.mark.parametrize("name", ["clients.json", "summary.json", "data.json"])
def test_files_with_millions_of_entries_are_refused_cheaply(
    name: str, remote_folder: RemoteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = remote_folder.copy(tmp_path / "remote_folder")
    (copy.run / name).write_text(f"[{'{},' * 20_000_000}{{}}]")
    with cheap():
        READERS["clients"](copy, monkeypatch)
        READERS["compare"](copy, monkeypatch)


def test_a_very_large_sparse_state_file_is_refused(
    remote_folder: RemoteFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = remote_folder.copy(tmp_path / "remote_folder")
    (segment,) = (copy.run / "checkpoint").glob("clients-*")
    index = pack(
        {"states": torch.tensor([[k, 1, 2**33 * (k > 0), 2**33] for k in range(20)])},
        run=RunFolder(copy.run).run_id,
        round=1,
    )
    with segment.open("wb") as file:
        file.seek(2**33)
        file.write(index + len(index).to_bytes(8, "little"))
    with cheap():
        assert READERS["predict"](copy, monkeypatch) == 1
    assert "it has more than" in capsys.readouterr().err


def test_a_run_of_a_sweep_is_not_written_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("runs", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runs" / "fedgh-seed0").symlink_to(tmp_path / "elsewhere")
    settings = [argument for setting in SMALL for argument in ("--set", setting)]
    arguments = ["compare", "demo", "--methods", "fedgh", "--seeds", "0", *settings]
    assert inside(monkeypatch, *arguments, "--out", str(tmp_path / "runs")) == 1
    assert "is a symbolic link" in capsys.readouterr().err
    assert list((tmp_path / "elsewhere").iterdir()) == []
    shutil.rmtree(tmp_path / "runs")
