"""All commands that read a run folder of a remote party, for tests with malicious folders."""

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
from fedgh.flower.exporter import MetricsServer
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
"""The study whose runs `reproduce` reads."""


@dataclass(frozen=True)
class RemoteFolder:
    """A folder with a run of a remote party, and with the user's own files."""

    path: Path
    method: str  # of the run

    @property
    def run(self) -> Path:
        """Path of the run, where a comparison of this method expects it."""
        return self.path / "runs" / f"{self.method}-seed0"

    def copy(self, to: Path) -> "RemoteFolder":
        """Copy the folder to another path, and return the copy."""
        shutil.copytree(self.path, to, symlinks=True)
        return RemoteFolder(to, self.method)

    def settings(self, section: str, key: str, value: object) -> None:
        """Change the configuration of the run."""
        file = self.run / "config.toml"
        table = read_toml(file)
        table[section][key] = value
        file.write_text(tomli_w.dumps(table))


def make(path: Path, method: str) -> RemoteFolder:
    """Create a folder with a finished run and all files that commands need."""
    shared = ["method.shared=mlp"] if method in ("fml", "fedkd") else []
    experiment = prepare(config.load("demo", [*SMALL, f"method.name={method}", *shared]))
    folder = RemoteFolder(path, method)
    loop.run(experiment, folder.run)
    (path / "own.toml").write_text(experiment.config.to_toml())
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 1, 32, 32)).astype(np.uint8)
    np.savez(path / "data.npz", x=x, y=np.arange(40) % 10)
    np.save(path / "x.npy", x)
    FederationFolder.create(path / "federation", experiment.config)
    return folder


Command = Callable[[RemoteFolder, pytest.MonkeyPatch], object]


def _command_line(*arguments: str) -> Command:
    """Return a command line in which RUN, HERE and OUT are replaced.

    They stand for the run, the folder around it, and a new folder.
    """

    def act(folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> object:
        out = folder.path / "out"
        out.mkdir(exist_ok=True)
        values = {"RUN": str(folder.run), "HERE": str(folder.path), "OUT": str(out)}
        replaced = [
            values.get(argument, argument.replace("HERE/", f"{folder.path}/"))
            for argument in arguments
        ]
        return inside(monkeypatch, *(argument.replace("OUT/", f"{out}/") for argument in replaced))

    return act


def _audit(folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> object:
    little = Effort(sizes=(1,), reconstructions=2, candidates=4, levels=())
    monkeypatch.setattr(audits, "Effort", lambda: little)
    return _command_line("audit", "RUN")(folder, monkeypatch)


def _metrics(folder: RemoteFolder, _: pytest.MonkeyPatch) -> object:
    federation = FederationFolder.open(folder.path / "federation")
    with MetricsServer(federation, folder.run, 0) as server:
        return server.answer()


def _watch(folder: RemoteFolder, _: pytest.MonkeyPatch) -> object:
    return LivePage(folder.run).content()


def _sweep(command: str) -> Command:
    def act(folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> object:
        arguments = [
            command,
            str(folder.path / "own.toml"),
            "--methods",
            folder.method,
            "--seeds",
            "0",
        ]
        return inside(monkeypatch, *arguments, "--out", str(folder.path / "runs"))

    return act


def _reproduce(folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> object:
    (trial, *_) = STUDY.trials([])
    study_run = folder.path / "studies" / "smoke" / trial.folder
    study_run.parent.mkdir(parents=True, exist_ok=True)
    folder.run.rename(study_run)
    arguments = ["reproduce", STUDY.name, "--budget", "smoke", "--seeds", "0", "--no-run"]
    return inside(monkeypatch, *arguments, "--out", str(folder.path / "studies"))


def _resume(folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> object:
    return inside(monkeypatch, "resume", str(folder.run), "--quiet")


READERS: dict[str, Command] = {
    "report": _command_line("report", "RUN"),
    "clients": _command_line("clients", "RUN"),
    "predict": _command_line("predict", "RUN", "HERE/x.npy", "--client", "0", "--csv", "OUT/p.csv"),
    "export": _command_line("export", "RUN", "--client", "0", "--format", "safetensors"),
    "audit": _audit,
    "newcomer": _command_line(
        *("newcomer", "RUN", "--data", "HERE/data.npz", "--network", "mlp", "--rounds", "1"),
        *("--out", "OUT/joined"),
    ),
    "forget": _command_line("forget", "RUN", "--client", "0"),
    "watch": _watch,
    "compare": _sweep("compare"),
    "advise": _sweep("advise"),
    "reproduce": _reproduce,
    "flower metrics": _metrics,
    "flower status": _command_line("flower", "status", "HERE/federation", "--out", "RUN"),
}
"""Commands that are safe with a run folder of a remote party."""

RUN_CODE: dict[str, Command] = {"resume": _resume}
"""Commands that import code named in a run folder, on purpose; SECURITY.md lists them."""

NO_RUN_FOLDER = {
    *("run", "tune", "partition", "list", "new-method", "data fetch"),
    *("flower init", "flower up", "flower join", "flower stop", "flower renew"),
    *("flower check", "flower predict", "flower export"),  # in a client's own folder
}
"""Commands that read no run folder of a remote party; some run code that the user names."""
