"""FedGH (Yi, Wang, Liu, Shi and Yu, ACM MM 2023), Algorithm 1.

Clients keep their extractors and upload one class mean for each of their classes (in the paper:
local averaged representation, LAR). The server trains the header on these pairs of class and mean,
and sends it to the next participants.
"""

from typing import Literal

from torch import Generator
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Count, NonNegative, Payload, Uploads


class FedGH(api.Method):
    """`server_lr = 0` keeps the random initial header: an ablation that the paper lacks."""

    family, about = "headers", "The server trains one header on the clients' class means."
    up, down = api.PerClass("representation"), api.HEADER
    accepts_newcomers = True

    server_lr: NonNegative = 0.01  # learning rate of the header; 0 freezes it
    server_batch: Literal["pair", "client"] = "pair"  # one step per class mean, or per client
    server_epochs: Count = 1  # passes over the pairs of a round

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.linear_header(task, rng)

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.model.header.load_state_dict(down)
        api.train(client, lambda x, y: cross_entropy(client.model(x), y))
        return api.class_means(client)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        if self.server_lr == 0:
            return server
        header = api.LinearSGD(server, self.server_lr)
        step = header.step_each if self.server_batch == "pair" else header.step_batch
        payloads = (upload.payload for upload in uploads)  # used as soon as they arrive
        stored = list(payloads) if self.server_epochs > 1 else []
        for _ in range(self.server_epochs):
            for pairs in stored or payloads:
                step(pairs["means"], pairs["classes"])
        return header.state()
