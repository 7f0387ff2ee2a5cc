"""Every command that reads a folder it did not make, ready to be tried on a hostile one."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from fedgh import config
from fedgh.audit import audit as audits
from fedgh.audit.cases import Effort
from fedgh.config import read_toml
from fedgh.flower.folder import FederationFolder
from fedgh.report.live import LivePage
from fedgh.studies.reproduce import Reproduction
from fedgh.training import loop
from fedgh.training.experiment import prepare
from tests.support.commands import inside

SMALL = [
    *("federation.clients=2", "federation.rounds=1", "model.extractors=mlp,perceptron"),
    *("model.rep_dim=4", "run.engine=serial", "data.partition=iid"),
]
STUDY = Reproduction("cost", "smoke", [0], [], None)
"""A study whose runs are looked for in the folder."""


@dataclass(frozen=True)
class Place:
    """A folder with runs from elsewhere, and what the user brings."""

    path: Path
    method: str  # of the run

    @property
    def run(self) -> Path:
        """The run, where a comparison of this method looks for it."""
        return self.path / "runs" / f"{self.method}-seed0"

    def copy(self, to: Path) -> "Place":
        """The same elsewhere."""
        shutil.copytree(self.path, to, symlinks=True)
        return Place(to, self.method)

    def settings(self, section: str, key: str, value: object) -> None:
        """Change the configuration of the run."""
        file = self.run / "config.toml"
        table = read_toml(file)
        table[section][key] = value
        file.write_text(tomli_w.dumps(table))


def make(path: Path, method: str) -> Place:
    """A finished run with everything that a run folder may hold."""
    shared = ["method.shared=mlp"] if method in ("fml", "fedkd") else []
    experiment = prepare(config.load("demo", [*SMALL, f"method.name={method}", *shared]))
    place = Place(path, method)
    loop.run(experiment, place.run)
    (path / "own.toml").write_text(experiment.config.to_toml())
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 1, 32, 32)).astype(np.uint8)
    np.savez(path / "data.npz", x=x, y=np.arange(40) % 10)
    np.save(path / "x.npy", x)
    FederationFolder.create(path / "federation", experiment.config)
    return place


Command = Callable[[Place, pytest.MonkeyPatch], object]


def _typed(*words: str) -> Command:
    """A command line in which RUN, HERE and OUT stand for the run, its place and a new folder."""

    def act(place: Place, monkeypatch: pytest.MonkeyPatch) -> object:
        out = place.path / "out"
        out.mkdir(exist_ok=True)
        meant = {"RUN": str(place.run), "HERE": str(place.path), "OUT": str(out)}
        given = [meant.get(word, word.replace("HERE/", f"{place.path}/")) for word in words]
        return inside(monkeypatch, *(word.replace("OUT/", f"{out}/") for word in given))

    return act


def _audit(place: Place, monkeypatch: pytest.MonkeyPatch) -> object:
    little = Effort(sizes=(1,), reconstructions=2, candidates=4, levels=())
    monkeypatch.setattr(audits, "Effort", lambda: little)
    return _typed("audit", "RUN")(place, monkeypatch)


def _watch(place: Place, _: pytest.MonkeyPatch) -> object:
    return LivePage(place.run).content()


def _sweep(command: str) -> Command:
    def act(place: Place, monkeypatch: pytest.MonkeyPatch) -> object:
        words = [command, str(place.path / "own.toml"), "--methods", place.method, "--seeds", "0"]
        return inside(monkeypatch, *words, "--out", str(place.path / "runs"))

    return act


def _reproduce(place: Place, monkeypatch: pytest.MonkeyPatch) -> object:
    (trial, *_) = STUDY.trials([])
    there = place.path / "studies" / "smoke" / trial.folder
    there.parent.mkdir(parents=True, exist_ok=True)
    place.run.rename(there)
    words = ["reproduce", STUDY.name, "--budget", "smoke", "--no-run"]
    return inside(monkeypatch, *words, "--out", str(place.path / "studies"))


def _resume(place: Place, monkeypatch: pytest.MonkeyPatch) -> object:
    return inside(monkeypatch, "resume", str(place.run), "--quiet")


READERS: dict[str, Command] = {
    "report": _typed("report", "RUN"),
    "clients": _typed("clients", "RUN"),
    "predict": _typed("predict", "RUN", "HERE/x.npy", "--client", "0", "--csv", "OUT/p.csv"),
    "export": _typed("export", "RUN", "--client", "0", "--format", "safetensors"),
    "audit": _audit,
    "newcomer": _typed(
        *("newcomer", "RUN", "--data", "HERE/data.npz", "--network", "mlp", "--rounds", "1"),
        *("--out", "OUT/joined"),
    ),
    "forget": _typed("forget", "RUN", "--client", "0"),
    "watch": _watch,
    "compare": _sweep("compare"),
    "advise": _sweep("advise"),
    "reproduce": _reproduce,
    "flower status": _typed("flower", "status", "HERE/federation", "--out", "RUN"),
}
"""What may be used on a run folder from elsewhere."""

RUN_CODE: dict[str, Command] = {"resume": _resume}
"""What imports the code that a run folder names, by its purpose; SECURITY.md lists it."""

NO_RUN_FOLDER = {
    *("run", "tune", "partition", "list", "new-method", "data fetch"),
    *("flower init", "flower up", "flower join", "flower stop"),
}
"""What reads no run folder that it did not make; some of it runs code that the user names."""
