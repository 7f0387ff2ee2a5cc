"""FedGKT, group knowledge transfer (He, Annavaram and Avestimehr, NeurIPS 2020).

A client sends representation, logits and label of each training sample. The server trains a large
network on them, and sends its logits back. Both learn from labels and from the other's logits.
"""

from torch import Generator, Tensor, nn, randperm
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Task, Uploads, part, prefixed

PARTS: tuple[api.SamplePart, ...] = ("representations", "logits", "labels")


class FedGKT(api.Method):
    """A client that sat out gets the logits of its last round; one that is new gets none."""

    family = "data-free distillation"
    about = "The server trains a large network on each sample's representation; logits go back."
    up, down = api.PerSample(*PARTS), api.OneOf(api.NOTHING, api.PerSample("logits"))

    temperature: api.Positive = 3.0  # of logits that the other side learns from
    alpha: api.NonNegative = 1.0  # weight of the logits at a client, of the labels at the server
    server_epochs: api.Count = 20  # passes over the samples of all participants
    server_batch: api.Count = 256  # samples in a step of the server
    server_lr: api.Positive = 0.001  # of Adam, with amsgrad and a weight decay of 1e-4
    hidden: api.Count = 1000  # width of the two hidden layers of the server's network

    def network(self, task: Task) -> nn.Sequential:
        return api.shared_layers(task, task.rep_dim, self.hidden, self.hidden, task.num_classes)

    def distil(self, teacher: Tensor, student: Tensor) -> Tensor:
        t = self.temperature
        return t**2 * api.distill(teacher / t, student / t)

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        return prefixed("network.", api.network_state(self.network(task)))

    def broadcast(self, server: Payload, to: api.Recipient) -> Payload:
        return part(server, f"client{to.id}.")

    def sendable(self, server: Payload) -> Payload:
        return {name: tensor for name, tensor in server.items() if name.startswith("client")}

    def client_update(self, client: Client, down: Payload) -> Payload:
        model, train, targets = client.model, client.data.train, down.get("logits")
        if targets is not None and len(targets) != len(train):
            raise api.WireError(f"logits of {len(targets)} samples, {len(train)} are here")
        labels = train.labels.to(client.device)

        def loss(x: Tensor, row: Tensor) -> Tensor:
            out, y = model(x), labels[row]
            taught = 0 if targets is None else self.distil(targets[row], out)
            return cross_entropy(out, y) + self.alpha * taught

        api.train(client, loss, on=api.numbered(train))
        r = api.outputs(client, model.represent, train)
        logits = api.outputs(client, model.header, api.unlabelled(r))
        return {"representations": r, "logits": logits, "labels": train.labels.int()}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        sent = {f"client{upload.client_id}.logits": upload.payload for upload in uploads}
        if not sent:
            return server
        network = self.network(uploads.task).to(uploads.device)
        api.load_network(network, part(server, "network."))
        lr, old, device = self.server_lr, part(server, "adam."), uploads.device
        adam = api.Learner(uploads, [network], lr=lr, weight_decay=1e-4, amsgrad=True, moments=old)
        rng = uploads.stream("samples")  # a client's samples are sorted by class
        for own in [own for _ in range(self.server_epochs) for own in sent.values()]:
            for rows in randperm(len(own["labels"]), generator=rng).split(self.server_batch):
                r, z, y = (own[name][rows].to(device) for name in PARTS)
                out = network(r)
                adam.step(self.distil(z, out) + self.alpha * cross_entropy(out, y.long()))
        server = server | prefixed("adam.", adam.finish())
        for name, own in sent.items():
            on = api.unlabelled(own["representations"])
            server = server | {name: api.network_outputs(network, on, device)}
        return server | prefixed("network.", api.network_state(network))
