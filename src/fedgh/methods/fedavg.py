"""FedAvg (McMahan, Moore, Ramage, Hampson and Agüera y Arcas, AISTATS 2017), Algorithm 1.

Everybody trains the global model; the server averages the results with weights n_k / n. All
clients need one architecture. Running statistics of batch normalisation are averaged too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import cross_entropy

from fedgh.core import wire
from fedgh.core.average import load_network, mean_by_examples, network_spec, network_state
from fedgh.core.local import sgd_epochs
from fedgh.core.method import Method
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload
from fedgh.errors import ConfigError


@dataclass(frozen=True)
class FedAvg(Method):
    """A participant, new or not, starts its round from the global model."""

    name: ClassVar[str] = "fedavg"
    weighs_by_examples: ClassVar[bool] = True

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """One model for all; refused when architectures differ."""
        if not models:
            raise ConfigError(
                "fedavg averages whole models: name the one that all have in model.zoo, and the "
                "shape of its inputs in data.shape"
            )
        shapes = [network_spec(network_state(model)) for model in models]
        differ = [k for k in range(task.num_clients) if shapes[k % len(shapes)] != shapes[0]]
        if differ:
            few = ", ".join(map(str, differ[:8])) + (", ..." if len(differ) > 8 else "")
            raise ConfigError(
                "fedavg averages whole models, so all clients need one architecture, but the "
                f"models of clients {few} differ from client 0's; give model.zoo one entry"
            )
        return network_state(models[0])

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train the global model on the local data."""
        load_network(client.model, down)
        sgd_epochs(client, lambda x, y: cross_entropy(client.model(x), y))
        return network_state(client.model)

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """The mean of the models, weighted by their numbers of training samples."""
        return mean_by_examples(uploads, if_none=server)

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """A whole model."""
        return network_spec(server)

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """A whole model like the client's own."""
        return [network_spec(network_state(client.model))]
