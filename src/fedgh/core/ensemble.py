"""Several networks of one client, each trained alone, which predict together.

They differ in their first weights, and in what dropout draws; batches and augmentation are the same
for all, in the same order. (A network that is brought with its weights is the same in all at first,
but for the header.)
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
    """Give a new client networks of its architecture beside its model, `size` in all."""
    for number in range(1, size):
        assert client.make_model is not None, "a client that is made can make its networks"
        client.modules[f"network{number}"] = client.make_model()


def networks_of(client: Client) -> list[SplitModel]:
    """Return the client's model, and the networks beside it."""
    return [client.model, *(m for m in client.modules.values() if isinstance(m, SplitModel))]


def train_each(client: Client, reset_header: bool) -> None:
    """Train one network after the other; the training loss of the client is the mean of theirs."""
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
    """Return the logarithm of the networks' mean probability; of one network its logits."""
    networks = networks_of(client)
    if len(networks) == 1:
        out: Tensor = client.model(x)
        return out
    each = [network(x).log_softmax(1) for network in networks]
    return torch.stack(each).logsumexp(0) - math.log(len(networks))
