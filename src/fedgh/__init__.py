"""Federated learning for clients whose models differ.

from fedgh import Federation, Participant

federation = Federation([Participant(network, (x, y)), Participant(other, "photos/")])
trained = federation.run(rounds=10)
print(trained.history)
print(trained.clients[0].predict(x))
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgh.advice import Advice, advise
    from fedgh.config import Config, load
    from fedgh.core.method import Method
    from fedgh.core.runs import RunFolder
    from fedgh.core.types import Client, Payload, SplitModel, Task, Upload
    from fedgh.data.sources import Source
    from fedgh.errors import FedghError
    from fedgh.experiment import Experiment, prepare
    from fedgh.federation import Federation
    from fedgh.models.adapt import adapt
    from fedgh.models.pixels import Pixels
    from fedgh.participant import Participant
    from fedgh.trained import Trained
    from fedgh.training import resume, run

__version__ = version("fedgh")

_HOME = {
    "Advice": "fedgh.advice",
    "Client": "fedgh.core.types",
    "Config": "fedgh.config",
    "Experiment": "fedgh.experiment",
    "Federation": "fedgh.federation",
    "FedghError": "fedgh.errors",
    "Method": "fedgh.core.method",
    "Participant": "fedgh.participant",
    "Payload": "fedgh.core.types",
    "Pixels": "fedgh.models.pixels",
    "RunFolder": "fedgh.core.runs",
    "Source": "fedgh.data.sources",
    "SplitModel": "fedgh.core.types",
    "Task": "fedgh.core.types",
    "Trained": "fedgh.trained",
    "Upload": "fedgh.core.types",
    "adapt": "fedgh.models.adapt",
    "advise": "fedgh.advice",
    "load": "fedgh.config",
    "prepare": "fedgh.experiment",
    "resume": "fedgh.training",
    "run": "fedgh.training",
}

__all__ = [
    "Advice",
    "Client",
    "Config",
    "Experiment",
    "Federation",
    "FedghError",
    "Method",
    "Participant",
    "Payload",
    "Pixels",
    "RunFolder",
    "Source",
    "SplitModel",
    "Task",
    "Trained",
    "Upload",
    "__version__",
    "adapt",
    "advise",
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


def __dir__() -> list[str]:
    """What an editor offers."""
    return __all__
