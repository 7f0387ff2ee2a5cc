"""FedTGP (Zhang, Liu, Hua and Cao, AAAI 2024), Algorithm 1.

FedProto whose global prototypes are trained, not averaged: the server learns one vector per class
that is near the clients' class means of this class and, by a margin, far from those of all others.
"""

from typing import Literal

from torch import Generator, Tensor, arange, cat, cdist, inf, nn, ones_like, randperm
from torch.nn.functional import cross_entropy, one_hot

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Task, Uploads, class_table, part, prefixed
from fedgh.methods.fedproto import FedProto


def contrast(means: Tensor, labels: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Return the mean cross-entropy of negative distances; the right class is `margin` farther."""
    distances = cdist(means, prototypes) + margin * one_hot(labels, len(prototypes))
    return cross_entropy(-distances, labels)


class FedTGP(FedProto):
    """Every participant, new or not, gets the prototypes of all classes, none in round 1."""

    about = "FedProto whose server trains the prototypes, a margin apart."
    up = down = api.PerClass("representation")

    lam: api.NonNegative = 10.0  # lambda: weight of the distance to the prototypes
    predict: Literal["header", "prototype"] = "header"  # the paper: the nearest prototype
    max_margin: api.NonNegative = 100.0  # tau: bound of the margin
    margin_of: Literal["farthest", "nearest"] = "farthest"  # pair of class centres; code: nearest
    server_lr: api.Positive = 0.01  # of plain SGD on the prototypes
    server_batch: api.Count = 10  # class means per step of the server
    server_epochs: api.Count = 100  # passes over the class means of a round

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        start = api.network_state(self.prototypes(task))
        return {**class_table.empty(task.num_classes, task.rep_dim), **prefixed("net.", start)}

    def prototypes(self, task: Task) -> nn.Sequential:
        """Return a network from a label to its prototype: a vector V_c ~ N(0, 1), then F."""
        c, r = task.num_classes, task.rep_dim
        return nn.Sequential(nn.Embedding(c, r), nn.Linear(r, r), nn.ReLU(), nn.Linear(r, r))

    broadcast = api.Method.broadcast  # all that is sendable: FedProto selects classes

    def sendable(self, server: Payload) -> Payload:
        return class_table.select(server, None)

    def client_update(self, client: Client, down: Payload) -> Payload:
        return {k: v for k, v in super().client_update(client, down).items() if k != "counts"}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        if not (sent := [each.payload for each in uploads if len(each.payload["classes"])]):
            return server
        means = cat([each["means"] for each in sent])
        labels = cat([each["classes"] for each in sent]).long()
        net, classes = self.prototypes(uploads.task), arange(uploads.task.num_classes)
        api.load_network(net, part(server, "net."))
        margin, rng = self.margin(means, labels, len(classes)), uploads.stream("class means")
        orders = [randperm(len(labels), generator=rng) for _ in range(self.server_epochs)]
        batches = [rows for order in orders for rows in order.split(self.server_batch)]

        def loss() -> Tensor:
            rows = batches.pop()
            return contrast(means[rows], labels[rows], net(classes), margin)

        api.learn(uploads, [net], loss, len(batches), lr=self.server_lr, optimizer="sgd")
        table = {"means": net(classes).detach(), "filled": ones_like(classes).bool()}
        return {**table, **prefixed("net.", api.network_state(net))}

    def margin(self, means: Tensor, labels: Tensor, num_classes: int) -> float:
        """Return the largest distance between class centres, at most `max_margin`; 0 for one."""
        sums, holders = class_table.sums(labels, means, num_classes)
        centres = (sums / holders[:, None])[holders > 0]
        distances = cdist(centres, centres)
        if self.margin_of == "nearest" and len(centres) > 1:
            distances = distances.fill_diagonal_(inf).amin(dim=1)
        return min(float(distances.max()), self.max_margin)
