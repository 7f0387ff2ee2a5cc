"""Fed-ET, ensemble knowledge transfer (Cho, Manoel, Joshi, Sim and Dimitriadis, IJCAI 2022).

Clients train small networks. The server lets these vote on unlabelled public data: a large network
learns the winning labels, and a little of the outputs of dissenters. All share its header.
"""

from collections.abc import Iterable

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, kl_div

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Task, Uploads, group_prefix, part, prefixed
from fedgh.methods.feddf import Steps, train_received

HEADER, LARGE = "header.", "large."


def vote(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each sample's label [P], its dissenters' logits [P, C], and if it has any [P].

    The variance of a network's logits, [S, P, C], over the classes is the weight of its vote.
    """
    logits = logits.double()  # a variance is the square of a logit
    weight = logits.var(2, correction=0, keepdim=True)
    label = (weight * logits).sum(0).argmax(1)
    weight = weight * (logits.argmax(2) != label)[:, :, None]
    total = weight.sum(0)
    dissent = (weight * logits).sum(0) / total.where(total > 0, 1)
    return label, dissent.float(), total[:, 0] > 0


class FedET(api.Method):
    """A participant, new or not, gets its architecture's mean with the large network's header."""

    family = "public data on the server"
    about = "The clients' networks vote on labels for a large network, whose header all share."
    up = down = api.Network("own")
    public_for = "server"

    shared: api.NetworkName = "cnn1"  # the extractor of the large network
    lam: api.NonNegative = 0.05  # weight of the dissenters' outputs
    server_steps: Steps = 128  # of the large network in a round
    server_batch: api.Several = 64  # public samples in a step
    server_lr: api.Positive = 0.005  # of SGD on the large network

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        large = api.network_state(api.shared_model(self.shared, task))
        return {**api.states_by_group(models), **prefixed(LARGE, large)}

    def broadcast(self, server: Payload, to: api.Recipient) -> Payload:
        header = prefixed(HEADER, part(server, LARGE + HEADER))
        return part(server, group_prefix(to.group)) | header

    def sendable(self, server: Payload) -> Payload:
        return {name: t for name, t in server.items() if not name.startswith(f"{LARGE}extractor.")}

    def client_update(self, client: Client, down: Payload) -> Payload:
        return train_received(client, down)

    def loss(self, out: Tensor, votes: Iterable[Tensor], rows: Tensor) -> Tensor:
        """Return CE(out, label) + lam KL(dissent || out), the batch mean."""
        label, dissent, heard = (each[rows] for each in votes)
        logs = out.log_softmax(1), dissent.log_softmax(1)
        apart = kl_div(*logs, log_target=True, reduction="none").sum(1)
        return cross_entropy(out, label) + self.lam * (heard * apart).mean()

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        means, header, said = api.GroupMeans(), api.WeightedMean(), []
        for upload in uploads:
            net = api.load_network(uploads.network(upload.client_id), upload.payload)
            logits = api.public_outputs(uploads, net)
            if logits is None:
                continue
            said.append(logits)
            means.add(upload, 1)
            header.add(part(upload.payload, HEADER), 1)
        if not said:
            return server
        large, batch = api.shared_model(self.shared, uploads.task), self.server_batch
        start = part(server, LARGE) | prefixed(HEADER, header.value(if_none={}))
        api.load_network(large.to(uploads.device), start)
        votes = [each.to(uploads.device) for each in vote(torch.stack(said))]
        loss = api.on_public(uploads, [large], batch, lambda z, i: self.loss(z, votes, i))
        api.learn(uploads, [large], loss, self.server_steps, lr=self.server_lr, optimizer="sgd")
        return means.value(if_none=server) | prefixed(LARGE, api.network_state(large))
