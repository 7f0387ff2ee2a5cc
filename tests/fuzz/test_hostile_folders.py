"""Run folders made to do harm: special files and settings that name code, in any combination."""

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
from tests.fuzz.readers import look_at
from tests.fuzz.refusal import Refused, attempt
from tests.trust.commands import SMALL
from tests.trust.watch import WATCH


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = [*SMALL, "method.name=fml", "method.shared=mlp"]
    path = tmp_path_factory.mktemp("folders") / "run"
    loop.run(prepare(config.load("demo", words)), path)
    LivePage(path).content()  # the first one imports what draws charts
    return path


NAMES = [
    *("config.toml", "data.json", "clients.json", "rounds.jsonl", "summary.json", ".lock"),
    *("confusion.json", "audit.json", "flower.json", "asked.json", "report.html"),
    *("checkpoint", "means", "export", "checkpoint/server.safetensors"),
    "checkpoint/client-000000.round-000001.safetensors",
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


def place(file: Path, kind: str, kept: Path) -> None:
    """Put something else where a file of a run is."""
    if file.parent.is_symlink() or not file.parent.is_dir():
        return  # behind another trap
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
        file.symlink_to({"device": "/dev/zero", "link": str(kept), "loop": str(file)}[kind])


def change(file: Path, settings: list[tuple[tuple[str, str], Any]]) -> None:
    """Other settings in a configuration, if it still is one."""
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
def test_a_hostile_folder_is_read_or_refused(
    run: Path,
    tmp_path_factory: pytest.TempPathFactory,
    settings: list[tuple[tuple[str, str], Any]],
    traps: dict[str, str],
) -> None:
    home = tmp_path_factory.mktemp("hostile")
    folder, kept = shutil.copytree(run, home / "run"), home / "kept"
    kept.write_text("precious")
    change(folder / "config.toml", settings)
    for name, kind in traps.items():
        place(folder / name, kind, kept)
    with WATCH.watching() as seen:
        look_at(folder)
        LivePage(folder).content()
        for ask in (
            lambda: name_runs([folder])[0].result,
            lambda: TrainedFederation.load(folder).clients[0].loaded,
            lambda: TrainedFederation.load(folder, data=True).clients[1].loaded,
            RunFolder(folder).rewind,
        ):
            found = attempt(FedghError, ask)
            assert not isinstance(found, Refused) or "\n" not in found.why
    assert [what for what in seen if "elsewhere_evil" in what or "/dev/zero" in what] == []
    assert kept.read_text() == "precious"
    shutil.rmtree(home)
