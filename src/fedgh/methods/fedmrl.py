"""FedMRL (Yi, Yu, Ren, Wang, Liu and Li, NeurIPS 2024).

Every client has a small shared network beside its private one, and a private linear map that
fuses the representations of both. The shared header reads the first numbers of the fused
representation, the private header all of them. The server averages the shared networks.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Task, Uploads


def shared_of(client: Client) -> api.SplitModel:
    """Return the client's copy of the shared network."""
    return cast(api.SplitModel, client.modules["shared"])


class FedMRL(api.Method):
    """A participant, new or not, starts its round with the global shared network."""

    family = "small shared network"
    about = "Headers of a shared and a private network read one fused representation."
    up = down = api.Network("shared")
    weighs_by_examples = sums_suffice = True

    shared: api.NetworkName = "cnn5"  # the extractor of the shared network
    shared_dim: api.Count = 100  # d1: numbers that the shared header reads; at most model.rep_dim

    def shared_network(self, task: Task) -> api.SplitModel:
        return api.shared_model(self.shared, replace(task, rep_dim=self.shared_dim))

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        if self.shared_dim > task.rep_dim:
            raise api.ConfigError(
                f"method.shared_dim = {self.shared_dim} exceeds model.rep_dim = {task.rep_dim}: "
                "the shared header reads a part of the fused representation"
            )
        return api.network_state(self.shared_network(task))

    def init_client(self, client: Client) -> None:
        width = client.task.rep_dim
        client.modules["projection"] = nn.Linear(self.shared_dim + width, width)
        client.modules["shared"] = self.shared_network(client.task)

    def client_update(self, client: Client, down: Payload) -> Payload:
        shared = shared_of(client)
        api.load_network(shared, down)
        networks = [client.model, shared, client.modules["projection"]]
        api.train(client, lambda x, y: self.loss(client, x, y), networks)
        return api.network_state(shared)

    def loss(self, client: Client, x: Tensor, y: Tensor) -> Tensor:
        fused = self.fused(client, x)
        of_shared = cross_entropy(shared_of(client).header(fused[:, : self.shared_dim]), y)
        return of_shared + cross_entropy(client.model.header(fused), y)

    def fused(self, client: Client, x: Tensor) -> Tensor:
        """Return the projection of both representations, the shared one first, [batch, r]."""
        both = shared_of(client).represent(x), client.model.represent(x)
        out: Tensor = client.modules["projection"](torch.cat(both, dim=1))
        return out

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)

    def logits(self, client: Client, x: Tensor) -> Tensor:
        out: Tensor = client.model.header(self.fused(client, x))
        return out
