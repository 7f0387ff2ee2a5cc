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
from tests.support.states import client_states, states
from tests.support.tiny import quick

TWO = ["federation.clients=2", "data.classes_per_client=5", "federation.participation=1"]
"""Settings for two clients that together have all classes."""


def federation(path: Path, experiment: Experiment, node_config: str = "") -> FederationFolder:
    """Create the folder of a federation, and return it."""
    allowed = f'allow="{NETWORKS}" {node_config}'
    made = FederationFolder.create(path, experiment.config, node_config=allowed)
    return FederationFolder.open(made.path)


def two(*overrides: str) -> Experiment:
    """Return a small experiment with two clients."""
    return quick(*TWO, *overrides)


def last_states(folder: FederationFolder, run: RunFolder) -> dict[str, bytes]:
    """Return the server's state after a run, and the newest state of each client."""
    session = Session.read(run.path)
    assert session is not None
    result = {"server.safetensors": states(run)["server.safetensors"]}
    for own in folder.participants.iterdir():
        states_folder = folder_of(own / "states", session.experiment, int(own.name))
        if states_folder.exists():
            result |= client_states(states_folder)
    return result


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until the condition holds; fail after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def running_processes_of(folder: Path) -> list[str]:
    """Return the commands of processes that run in a folder or have it as an argument."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            works_in = (process / "cwd").readlink()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if works_in.is_relative_to(folder) or re.search(rf"flower .*{folder}", command):
            result.append(command)
    return result
