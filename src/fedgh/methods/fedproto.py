"""FedProto (Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, AAAI 2022), Algorithm 1.

A client sends a prototype per class, the mean representation of its samples, and their number.
Its representations are pulled towards the global prototypes of its own classes.
"""

from typing import Literal

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Recipient, Uploads, class_table


class FedProto(api.Method):
    """A class without a participant keeps its prototype; a new client receives all prototypes."""

    family = "class means"
    about = "Representations are pulled towards global class means (prototypes)."
    up, down = api.PerClass("representation", counts=True), api.PerClass("representation")
    sums_suffice = True
    lam: api.NonNegative = 1.0  # lambda: weight of the distance to the prototypes
    predict: Literal["header", "prototype"] = "header"  # or by the nearest prototype

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return class_table.empty(task.num_classes, task.rep_dim)

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        return class_table.select(server, to.classes)

    def client_update(self, client: Client, down: Payload) -> Payload:
        table = class_table.by_label(down, client.task.num_classes)
        api.train(client, lambda x, y: self.loss(client, x, y, *table))
        client.memory = down if self.predict == "prototype" and len(down["classes"]) else {}
        return api.class_statistics(client)

    def loss(self, client: Client, x: Tensor, y: Tensor, means: Tensor, filled: Tensor) -> Tensor:
        r = client.model.represent(x)
        distance = (filled[y, None] * (r - means[y]) ** 2).mean()  # 0 for a class without prototype
        return cross_entropy(client.model.header(r), y) + self.lam * distance

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return class_table.update(server, uploads)

    def logits(self, client: Client, x: Tensor) -> Tensor:
        known = client.memory  # empty: predict by the header
        return class_table.nearest(known, client, x) if known else super().logits(client, x)
