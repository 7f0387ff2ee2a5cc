"""Federated learning for clients whose models differ.

from fedgh import Federation, ClientSpec

federation = Federation([ClientSpec(network, (x, y)), ClientSpec(other, "photos/")])
trained = federation.run(rounds=10)
print(trained.history)
print(trained.clients[0].predict(x))
"""

import logging
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedgh.version import __version__

if TYPE_CHECKING:
    from fedgh.config import Config, load
    from fedgh.core.method import Method
    from fedgh.core.records import Round, Summary
    from fedgh.core.types import Client, Payload, SplitModel, Task, Upload
    from fedgh.data.sources import Source
    from fedgh.errors import FedghError
    from fedgh.federation import Federation
    from fedgh.models.adapt import adapt
    from fedgh.models.pixels import Pixels
    from fedgh.report.write import write_report
    from fedgh.runs.folder import RunFolder
    from fedgh.studies.advice import Advice, advise
    from fedgh.trained.clients import TrainedFederation
    from fedgh.training.callbacks import Callback
    from fedgh.training.client_spec import ClientSpec
    from fedgh.training.experiment import Experiment, prepare
    from fedgh.training.loop import resume, run
    from fedgh.training.run import Run

logging.getLogger("fedgh").addHandler(logging.NullHandler())  # silent until asked

_HOME = {
    "Advice": "fedgh.studies.advice",
    "Callback": "fedgh.training.callbacks",
    "Client": "fedgh.core.types",
    "Config": "fedgh.config",
    "Experiment": "fedgh.training.experiment",
    "Federation": "fedgh.federation",
    "FedghError": "fedgh.errors",
    "Method": "fedgh.core.method",
    "ClientSpec": "fedgh.training.client_spec",
    "Payload": "fedgh.core.types",
    "Pixels": "fedgh.models.pixels",
    "Round": "fedgh.core.records",
    "Run": "fedgh.training.run",
    "RunFolder": "fedgh.runs.folder",
    "Source": "fedgh.data.sources",
    "SplitModel": "fedgh.core.types",
    "Summary": "fedgh.core.records",
    "Task": "fedgh.core.types",
    "TrainedFederation": "fedgh.trained.clients",
    "Upload": "fedgh.core.types",
    "adapt": "fedgh.models.adapt",
    "advise": "fedgh.studies.advice",
    "load": "fedgh.config",
    "prepare": "fedgh.training.experiment",
    "resume": "fedgh.training.loop",
    "run": "fedgh.training.loop",
    "write_report": "fedgh.report.write",
}

_RENAMED = {"Participant": "ClientSpec", "Trained": "TrainedFederation"}

__all__ = [
    "Advice",
    "Callback",
    "Client",
    "ClientSpec",
    "Config",
    "Experiment",
    "Federation",
    "FedghError",
    "Method",
    "Payload",
    "Pixels",
    "Round",
    "Run",
    "RunFolder",
    "Source",
    "SplitModel",
    "Summary",
    "Task",
    "TrainedFederation",
    "Upload",
    "__version__",
    "adapt",
    "advise",
    "load",
    "prepare",
    "resume",
    "run",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch is slow, `fedgh --help` should not be."""
    if name in _RENAMED:
        now = _RENAMED[name]
        warnings.warn(f"fedgh.{name} is called {now} now", DeprecationWarning, stacklevel=2)
        name = now
    if name not in _HOME:
        raise AttributeError(f"module 'fedgh' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Return the public names, for completion in editors."""
    return __all__
