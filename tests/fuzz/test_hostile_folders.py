"""Malicious run folders: special files and settings that name code, in any combination."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import strategies as st

from fedgh import config
from fedgh.errors import FedghError
from fedgh.report.live import LivePage
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import name_runs
from fedgh.trained.clients import TrainedFederation
from fedgh.training import loop
from fedgh.training.experiment import prepare
from tests.fuzz.budget import fuzz
from tests.fuzz.readers import read_everything
from tests.fuzz.refusal import Refused, attempt
from tests.trust.commands import SMALL
from tests.trust.watch import RECORDER


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = [*SMALL, "method.name=fml", "method.shared=mlp"]
    path = tmp_path_factory.mktemp("folders") / "run"
    loop.run(prepare(config.load("demo", settings)), path)
    LivePage(path).content()  # the first page imports the chart library
    return path


NAMES = [
    *("config.toml", "data.json", "clients.json", "rounds.jsonl", "summary.json", ".lock"),
    *("confusion.json", "audit.json", "flower.json", "current.json", "asked.json", "report.html"),
    *("checkpoint", "means", "export", "checkpoint/server.safetensors"),
    "checkpoint/clients-000001.round-000001.states",
]
KINDS = ["device", "pipe", "link", "loop", "folder", "sparse", "nothing"]
SETTINGS = [
    *(
        ("method", "name"),
        ("method", "shared"),
        ("model", "extractors"),
        ("data", "dir"),
        ("data", "path"),
    ),
    *(("run", "address"), ("federation", "clients"), ("model", "rep_dim"), ("data", "name")),
]
VALUES = [
    *("elsewhere_evil:make", "transformers//elsewhere_evil", "/elsewhere_evil", "auto", "cifar10"),
    *("npz", "mlp", 0, 10**9, ["elsewhere_evil:make"], ["mlp"] * 40, ["resnet18"], {"a": 1}),
]


def set_trap(file: Path, kind: str, target: Path) -> None:
    """Replace a file of a run by a special file."""
    if file.parent.is_symlink() or not file.parent.is_dir():
        return  # its folder is a trap already
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "sparse":
        with file.open("wb") as out:
            out.truncate(2**36)
    elif kind != "nothing":
        file.symlink_to({"device": "/dev/zero", "link": str(target), "loop": str(file)}[kind])


def change(file: Path, settings: list[tuple[tuple[str, str], Any]]) -> None:
    """Change settings in a configuration, if it is still a regular file."""
    table = attempt(FedghError, lambda: config.read_toml(file))
    if not isinstance(table, Refused):
        for (section, key), value in settings:
            table[section][key] = value
        file.write_text(tomli_w.dumps(table))


@fuzz(
    0.01,
    settings=st.lists(st.tuples(st.sampled_from(SETTINGS), st.sampled_from(VALUES)), max_size=2),
    traps=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KINDS), max_size=3),
)
def test_a_malicious_folder_is_read_or_refused(
    run: Path,
    tmp_path_factory: pytest.TempPathFactory,
    settings: list[tuple[tuple[str, str], Any]],
    traps: dict[str, str],
) -> None:
    root = tmp_path_factory.mktemp("hostile")
    folder, target = shutil.copytree(run, root / "run"), root / "target"
    target.write_text("precious")
    change(folder / "config.toml", settings)
    for name, kind in traps.items():
        set_trap(folder / name, kind, target)
    with RECORDER.recording() as events:
        read_everything(folder)
        LivePage(folder).content()
        for read in (
            lambda: name_runs([folder])[0].result,
            lambda: TrainedFederation.load(folder).clients[0].loaded,
            lambda: TrainedFederation.load(folder, data=True).clients[1].loaded,
            RunFolder(folder).rewind,
        ):
            outcome = attempt(FedghError, read)
            assert not isinstance(outcome, Refused) or "\n" not in outcome.why
    assert [event for event in events if "elsewhere_evil" in event or "/dev/zero" in event] == []
    assert target.read_text() == "precious"
    shutil.rmtree(root)
