"""FD, federated distillation (Jeong, Oh, Kim, Park, Bennis and Kim, 2018).

Clients send the mean of their softmax outputs for each of their classes. A client's outputs are
pulled towards the means of the *other* participants of the last round.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, cat
from torch.nn.functional import cross_entropy, log_softmax

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Recipient, Uploads, class_table


def distillation(logits: Tensor, y: Tensor, targets: Tensor, filled: Tensor) -> Tensor:
    """Return the cross-entropy between the target of each sample's class and its output.

    Mean over the batch; a sample whose class has no target adds nothing.
    """
    return -(filled[y, None] * targets[y] * log_softmax(logits, dim=1)).sum() / len(y)


def no_rows(width: int) -> Payload:
    """Return a table without rows; each would have a class and the number of its owner."""
    none = torch.zeros(0, dtype=torch.int32)
    return {"owner": none, "classes": none, "means": torch.zeros(0, width)}


def mean_of_others(table: Payload, client: int, num_classes: int) -> Payload:
    """Return the mean row of each class over all clients but one, as a table."""
    others = table["owner"] != client
    sums, holders = class_table.sums(table["classes"][others], table["means"][others], num_classes)
    return {"means": (sums / holders[:, None]).float(), "filled": holders > 0}


def collected(sent: Sequence[tuple[int, Payload]]) -> Payload:
    """Return the rows that several clients have sent, in one table."""
    owners = [torch.full_like(own["classes"], number) for number, own in sent]
    rows = {name: cat([own[name] for _, own in sent]) for name in ("classes", "means")}
    return {"owner": cat(owners), **rows}


class FD(api.Method):
    """A class has no target if no other participant of the last round has samples of it."""

    family = "data-free distillation"
    about = "Clients learn from the other clients' mean outputs per class."
    up = down = api.PerClass("output")

    gamma: api.NonNegative = 0.1  # weight of the distillation; the paper gives no value

    def init_server(self, task: api.Task, models: api.Models, rng: torch.Generator) -> Payload:
        return no_rows(task.num_classes)

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        table = mean_of_others(server, to.id, server["means"].shape[1])
        return class_table.select(table, to.classes)  # a new client receives all classes

    def client_update(self, client: Client, down: Payload) -> Payload:
        targets, filled = class_table.by_label(down, client.task.num_classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = client.model(x)
            return cross_entropy(logits, y) + self.gamma * distillation(logits, y, targets, filled)

        api.train(client, loss)
        return api.class_outputs(client)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        sent = [(upload.client_id, upload.payload) for upload in uploads]
        return collected(sent) if sent else server
