"""FML, federated mutual learning (Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu and Wu, 2020).

Every client has a private model of its own and a copy of a small shared one ("meme"); the two
teach each other on the local data. The server averages the shared ones with weights n_k / n,
running statistics of batch normalisation included. Clients are judged by their private model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgh.core import wire
from fedgh.core.average import load_network, mean_by_examples, network_spec, network_state
from fedgh.core.local import sgd_epochs
from fedgh.core.losses import distill
from fedgh.core.method import Method
from fedgh.core.names import Names
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload
from fedgh.models import shared_model


def mutual_loss(private: Tensor, shared: Tensor, y: Tensor, alpha: float, beta: float) -> Tensor:
    """The losses of both models, each a mix of the labels and of what the other one says.

    A model learns from the other's output but does not change it: each loss moves one model.
    """
    for_private = alpha * cross_entropy(private, y) + (1 - alpha) * distill(shared, private)
    for_shared = beta * cross_entropy(shared, y) + (1 - beta) * distill(private, shared)
    return for_private + for_shared


@dataclass(frozen=True)
class FML(Method):
    """A participant, new or not, starts its round with the global shared model."""

    name: ClassVar[str] = "fml"
    weighs_by_examples: ClassVar[bool] = True

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of the labels for the private model
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5  # and for the shared one
    shared: Annotated[str, Names.NETWORK] = "cnn5"  # the extractor of the shared model

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """The shared model at its random start."""
        return network_state(shared_model(self.shared, task))

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Let the private and the shared model teach each other; send the shared one back."""
        shared = shared_model(self.shared, client.task).to(client.device)
        load_network(shared, down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return mutual_loss(client.model(x), shared(x), y, self.alpha, self.beta)

        sgd_epochs(client, loss, [client.model, shared])
        return network_state(shared)

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """The mean of the shared models, weighted by the numbers of training samples."""
        return mean_by_examples(uploads, if_none=server)

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """A shared model."""
        return network_spec(server)

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """A shared model."""
        return [network_spec(network_state(shared_model(self.shared, client.task)))]
