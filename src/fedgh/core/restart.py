"""A common start, for methods whose clients begin again in each round."""

from fedgh.core.average import load_network, network_state
from fedgh.core.rng import isolated
from fedgh.core.types import Client


def restart(client: Client) -> None:
    """Give the client's model new weights, in each round the same for all of its architecture."""
    assert client.make_model is not None, "every client of a federation can make its network"
    with isolated(client.task.seed, "restart"):
        load_network(client.model, network_state(client.make_model()))
