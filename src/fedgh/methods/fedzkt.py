"""FedZKT, zero-shot knowledge transfer (Zhang, Wu and Yuan, ICDCS 2022).

On the server, a generator looks for inputs on which a global network and the mean output of the
clients' networks disagree; the global one learns to agree there, then teaches each of theirs.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Recipient, Task, Uploads, part, prefixed


def disagreement(logits: Tensor, ensemble: Tensor) -> Tensor:
    """Return the l1 distance between softmax(logits) and the ensemble's output, the batch mean."""
    return (logits.softmax(1) - ensemble).abs().sum(1).mean()


class FedZKT(api.Method):
    """A client that has never taken part gets nothing, and trains alone in its first round."""

    family, about = "data-free distillation", "Networks learn on inputs that the server generates."
    up, down = api.Network("own"), api.OneOf(api.NOTHING, api.Network("own"))

    shared: api.NetworkName = "cnn1"  # the extractor of the server's global network
    server_steps: api.Count = 200  # of each of the server's two loops
    server_batch: api.Several = 256  # generated inputs in a step
    server_lr: api.Positive = 0.01  # of the networks that the server trains, by SGD
    generator_lr: api.Positive = 0.001  # of the generator, by Adam
    noise: api.Count = 100  # numbers from which an input is generated
    mu: api.NonNegative = 1.0  # weight of the squared distance from the received weights

    def networks(self, task: Task) -> nn.ModuleDict:
        shared = api.shared_model(self.shared, task)
        return nn.ModuleDict({"generator": api.input_generator(self.noise, task), "global": shared})

    def init_server(self, task: Task, models: api.Models, rng: torch.Generator) -> Payload:
        return api.network_state(self.networks(task))

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        return part(server, f"client{to.id}.")

    def sendable(self, server: Payload) -> Payload:
        return {name: tensor for name, tensor in server.items() if name.startswith("client")}

    def client_update(self, client: Client, down: Payload) -> Payload:
        api.load_network(client.model, api.network_state(client.model) | down)
        api.train(client, lambda x, y: self.loss(client.model, x, y, down))
        return api.network_state(client.model)

    def loss(self, model: api.SplitModel, x: Tensor, y: Tensor, down: Payload) -> Tensor:
        away = [(w - down[n]).square().sum() for n, w in model.named_parameters() if down]
        return cross_entropy(model(x), y) + self.mu * sum(away)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        sent = {upload.client_id: upload.payload for upload in uploads}
        if not sent:
            return server
        nets = self.networks(uploads.task).to(uploads.device)
        api.load_network(nets, {name: server[name] for name in api.network_state(nets)})
        generator, shared = nets.values()
        clients = [api.load_network(uploads.network(k), own).eval() for k, own in sent.items()]
        rng, adam = uploads.stream("noise"), part(server, "adam.")
        seeks = api.Learner(uploads, [generator], lr=self.generator_lr, moments=adam)
        learns = api.Learner(uploads, [shared], lr=self.server_lr, optimizer="sgd")
        for _ in range(self.server_steps):
            x = generator(self.server_batch, rng)
            ensemble = torch.stack([client(x).softmax(1) for client in clients]).mean(0)
            seeks.step(-disagreement(shared(x), ensemble))
            learns.step(disagreement(shared(x.detach()), ensemble.detach()))
        adam, _ = seeks.finish("generator_loss"), learns.finish()
        teaches = api.Learner(uploads, clients, lr=self.server_lr, optimizer="sgd")
        for _ in range(self.server_steps):
            x = generator(self.server_batch, rng).detach()
            target = shared(x)
            teaches.step(torch.stack([api.distill(target, f(x)) for f in clients]).sum())
        teaches.finish("transfer_loss")
        nets.update({f"client{k}": client for k, client in zip(sent, clients, strict=True)})
        return {**server, **api.network_state(nets), **prefixed("adam.", adam)}
