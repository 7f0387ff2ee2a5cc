"""Ensembles: several networks of one client, trained separately, whose predictions are averaged.

The networks differ in their initial weights and in the random masks of dropout. Batches and
augmentation are the same for all, in the same order. If the user supplies a network with its
weights, the networks initially differ only in the header.
"""

import math
from statistics import fmean
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgh.core.header import linear_header
from fedgh.core.local import train
from fedgh.core.types import Client, SplitModel

Size = Annotated[int, Field(ge=1, le=8)]


def add_networks(client: Client, size: int) -> None:
    """Add networks of the same architecture to a new client, so that it has `size` in all."""
    for number in range(1, size):
        assert client.make_model is not None, "a newly created client has make_model"
        client.modules[f"network{number}"] = client.make_model()


def networks_of(client: Client) -> list[SplitModel]:
    """Return the client's model and its additional networks."""
    return [client.model, *(m for m in client.modules.values() if isinstance(m, SplitModel))]


def train_each(client: Client, reset_header: bool) -> None:
    """Train the networks one after another; record their mean loss as `train_loss`."""
    headers, losses = client.stream("reset-header"), []
    for network in networks_of(client):
        if reset_header:
            network.header.load_state_dict(linear_header(client.task, headers))
        _train(client, network)
        losses.append(client.metrics["train_loss"])
    client.metrics["train_loss"] = fmean(losses)


def _train(client: Client, network: SplitModel) -> None:
    train(client, lambda x, y: cross_entropy(network(x), y), [network])


def mean_logits(client: Client, x: Tensor) -> Tensor:
    """Return the log of the networks' mean probabilities; for a single network, its logits."""
    networks = networks_of(client)
    if len(networks) == 1:
        out: Tensor = client.model(x)
        return out
    log_probabilities = [network(x).log_softmax(1) for network in networks]
    return torch.stack(log_probabilities).logsumexp(0) - math.log(len(networks))
