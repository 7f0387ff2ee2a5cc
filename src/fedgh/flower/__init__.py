"""Real federations: the same methods, run between organisations over Flower.

A participant writes an app and names it when it starts its SuperNode:

from fedgh.flower import ClientSpec, client_app

def make_client(task, node_config):
    x, y = my_data(node_config["data"])
    return ClientSpec(MyNetwork(), (x, y))

app = client_app(make_client)
"""

from fedgh.errors import ConfigError
from fedgh.extras import install

try:
    import flwr  # noqa: F401
except ImportError:
    raise ConfigError(f"this needs Flower; {install('flower')}") from None

from fedgh.flower.bound import NodeConfig
from fedgh.flower.participant import client_app
from fedgh.training.client_spec import ClientSpec

__all__ = ["ClientSpec", "NodeConfig", "client_app"]
