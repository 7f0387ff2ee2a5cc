"""Federations of real processes, for tests."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from fedgh.experiment import Experiment
from fedgh.flower.folder import FederationFolder
from tests.flower.local import NETWORKS
from tests.tiny import quick

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
