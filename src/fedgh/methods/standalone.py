"""Standalone: every client trains alone. The baseline that any federation has to beat."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgh.core import wire
from fedgh.core.header import linear_header
from fedgh.core.local import sgd_epochs
from fedgh.core.method import Method, Sharing
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload


@dataclass(frozen=True)
class Standalone(Method):
    """With `reset_header` the header starts anew every round.

    Forgetting the last layer is known to regularise, and FedGH does it too when it replaces the
    local header by the global one. This ablation shows how much of its gain that alone explains.

    With several `networks` a client trains so many of its own architecture, and predicts with the
    mean of their probabilities: a control for methods whose clients have a second model. They
    differ in their first weights, and in what dropout draws; batches and augmentation are the same
    for all, in the same order. (A network that is brought with its weights is the same in all at
    first, but for the header.) The training loss is the mean of theirs.
    """

    name: ClassVar[str] = "standalone"
    shares: ClassVar[Sharing] = "nothing"

    reset_header: bool = False  # to a new random one, every round
    networks: Annotated[int, Field(ge=1, le=8)] = 1  # of a client, which predict together

    def init_client(self, client: Client) -> None:
        """Make the networks beside the client's model."""
        for number in range(1, self.networks):
            assert client.make_model is not None, "a client that is made can make its networks"
            client.modules[f"network{number}"] = client.make_model()

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train on the local data, one network after the other; share nothing."""
        headers, losses = client.stream("reset-header"), []
        for network in networks_of(client):
            if self.reset_header:
                network.header.load_state_dict(linear_header(client.task, headers))
            _train(client, network)
            losses.append(client.metrics["train_loss"])
        client.metrics["train_loss"] = fmean(losses)
        return {}

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """The client's model, or the logarithm of the mean probability of all its networks."""
        if self.networks == 1:
            return super().predict(client, x)
        said = [network(x).log_softmax(1) for network in networks_of(client)]
        return torch.stack(said).logsumexp(0) - math.log(self.networks)

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """There is nothing to do."""
        return server

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """Nothing crosses."""
        return {}

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """Nothing crosses."""
        return [{}]

    def paper_bytes(self, task: Task, local_classes: int) -> int:
        """Nothing crosses."""
        return 0


def networks_of(client: Client) -> list[SplitModel]:
    """The client's model, and those beside it."""
    return [client.model, *(m for m in client.modules.values() if isinstance(m, SplitModel))]


def _train(client: Client, network: SplitModel) -> None:
    sgd_epochs(client, lambda x, y: cross_entropy(network(x), y), [network])
