"""Federations of real processes, for tests."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from fedgh.flower.client import folder_of
from fedgh.flower.folder import FederationFolder
from fedgh.flower.session import Session
from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment
from tests.flower.local import NETWORKS
from tests.support.tiny import quick, states, tensors

TWO = ["federation.clients=2", "data.classes_per_client=5", "federation.participation=1"]
"""Two participants, who between them hold all classes."""


def federation(path: Path, experiment: Experiment, node_config: str = "") -> FederationFolder:
    """The folder of a federation."""
    allowed = f'allow="{NETWORKS}" {node_config}'
    made = FederationFolder.create(path, experiment.config, node_config=allowed)
    return FederationFolder.open(made.path)


def two(*overrides: str) -> Experiment:
    """A small federation of two participants."""
    return quick(*TWO, *overrides)


def last_states(folder: FederationFolder, run: RunFolder) -> dict[str, bytes]:
    """The server's state after a run, and the newest of each participant that has one."""
    session = Session.read(run.path)
    assert session is not None
    found = {"server.safetensors": states(run)["server.safetensors"]}
    for own in folder.participants.iterdir():
        home = folder_of(own / "states", session.experiment, int(own.name))
        for newest in sorted(home.glob("*.safetensors"))[-1:]:
            found[newest.name] = tensors(newest)
    return found


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Look until it is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def left_behind(folder: Path) -> list[str]:
    """The processes that have something to do with a folder: they work there or name it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            works_in = (process / "cwd").readlink()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if works_in.is_relative_to(folder) or re.search(rf"flower .*{folder}", command):
            found.append(command)
    return found
