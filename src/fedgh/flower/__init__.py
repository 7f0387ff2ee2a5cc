"""Federations between organisations over Flower, with the same methods as on one machine.

An organisation with its own network and data writes an app, in a file such as hospital.py:

from fedgh.flower import ClientSpec, client_app

def make_client(task, node_config):
    x, y = my_data(node_config["data"])
    return ClientSpec(MyNetwork(), (x, y))

app = client_app(make_client)

It names the app in its node.conf: app="hospital:app".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedgh.errors import ConfigError
from fedgh.extras import install

try:
    import flwr  # noqa: F401
except ImportError:
    raise ConfigError(f"this needs Flower; {install('flower')}") from None

if TYPE_CHECKING:
    from fedgh.flower.bound import NodeConfig
    from fedgh.flower.participant import client_app
    from fedgh.flower.states import last_state
    from fedgh.training.client_spec import ClientSpec

_HOME = {
    "ClientSpec": "fedgh.training.client_spec",
    "NodeConfig": "fedgh.flower.bound",
    "client_app": "fedgh.flower.participant",
    "last_state": "fedgh.flower.states",
}

__all__ = ["ClientSpec", "NodeConfig", "client_app", "last_state"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a SuperLink or SuperNode needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedgh.flower' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
