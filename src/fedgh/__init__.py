"""Federated learning for clients whose models differ.

from fedgh import load, prepare, run

experiment = prepare(load("demo", ["federation.rounds=3"]))
folder = run(experiment, Path("runs/mine"))
print(folder.summary())
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgh.config import Config, load
    from fedgh.core.method import Method
    from fedgh.core.runs import RunFolder
    from fedgh.core.types import Client, Payload, SplitModel, Task, Upload
    from fedgh.data.sources import Source
    from fedgh.errors import FedghError
    from fedgh.experiment import Experiment, prepare
    from fedgh.trained import Trained
    from fedgh.training import resume, run

__version__ = version("fedgh")

_HOME = {
    "Client": "fedgh.core.types",
    "Config": "fedgh.config",
    "Experiment": "fedgh.experiment",
    "FedghError": "fedgh.errors",
    "Method": "fedgh.core.method",
    "Payload": "fedgh.core.types",
    "RunFolder": "fedgh.core.runs",
    "Source": "fedgh.data.sources",
    "SplitModel": "fedgh.core.types",
    "Task": "fedgh.core.types",
    "Trained": "fedgh.trained",
    "Upload": "fedgh.core.types",
    "load": "fedgh.config",
    "prepare": "fedgh.experiment",
    "resume": "fedgh.training",
    "run": "fedgh.training",
}

__all__ = [
    "Client",
    "Config",
    "Experiment",
    "FedghError",
    "Method",
    "Payload",
    "RunFolder",
    "Source",
    "SplitModel",
    "Task",
    "Trained",
    "Upload",
    "__version__",
    "load",
    "prepare",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch is slow, `fedgh --help` should not be."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedgh' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
