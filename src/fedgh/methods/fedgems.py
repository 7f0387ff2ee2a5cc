"""FedGEMS, selective knowledge fusion (Cheng, Wu, Xiao, Liu and Liu, 2021).

A large network of the server learns labelled public data: from clients, where it is wrong and was
never right. Clients learn the same data from the labels and from the server's logits.
"""

import torch
from torch import Generator, Tensor, zeros
from torch.nn.functional import cross_entropy, kl_div

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Task, part, prefixed, questions


class FedGEMS(api.Method):
    """Every participant gets the server's logits of all public samples; in round 1 none."""

    family, public_for, public_labels = "public data on clients", "all", True
    about = "The server's large network learns labelled public data, and teaches the clients."
    up = questions.ANSWER
    down = api.OneOf(questions.QUESTION, questions.QUESTION + api.PublicOutputs())

    shared: api.NetworkName = "cnn1"  # the extractor of the server's network
    epsilon: api.Fraction = 0.75  # weight of labels; 1 is the control: clients use labels alone
    selective: bool = True  # False is FedGEM: the mean of all clients, for all samples
    public_epochs: api.Count = 1  # passes of a client over the public data
    server_batch: api.Several = 256  # samples in a step of the server, which makes one pass
    server_lr: api.Positive = 0.001  # of Adam, with a weight decay of 1e-4

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        network, size = api.network_state(api.shared_model(self.shared, task)), task.public_size
        pool, filled = zeros(size, task.num_classes), zeros(size, dtype=torch.bool)
        asked = {"pool": pool, "filled": filled, "wanted": questions.everything(task)}
        return {**prefixed("network.", network), **asked}

    def sendable(self, server: Payload) -> Payload:
        return {name: server[name] for name in ("wanted", "logits") if name in server}

    def loss(self, out: Tensor, y: Tensor, teacher: Tensor, taught: Tensor | bool) -> Tensor:
        """Return the mean loss of labels, mixed with the teacher's for samples that are taught."""
        labels, log_p = cross_entropy(out, y, reduction="none"), out.log_softmax(1)
        others = kl_div(log_p, teacher.log_softmax(1), log_target=True, reduction="none").sum(1)
        return (labels + taught * (1 - self.epsilon) * (others - labels)).mean()

    def client_update(self, client: Client, down: Payload) -> Payload:
        model, labels = client.model, client.public.labels.to(client.device)

        def public_loss(x: Tensor, row: Tensor) -> Tensor:
            return self.loss(model(x), labels[row], down["logits"][row], taught=True)

        if "logits" in down:
            api.train_public(client, public_loss, client.public, epochs=self.public_epochs)
        api.train(client, lambda x, y: cross_entropy(model(x), y))
        return questions.answer(client, down)

    def knows(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.argmax(1) == y) & self.selective  # FedGEM asks about what it knows, too

    def server_update(self, server: Payload, uploads: api.Uploads) -> Payload:
        answers, public, device = (
            questions.collected(server, uploads),
            uploads.public,
            uploads.device,
        )
        if not len(answers):
            return server
        y, wanted, known = public.labels, server["wanted"].long(), server["filled"].clone()
        pool, filled = server["pool"].clone(), server["filled"].clone()
        mean = questions.fused(answers, y[wanted]) if self.selective else (answers.mean(0), True)
        pool[wanted], known[wanted] = mean
        network = api.shared_model(self.shared, uploads.task).to(device)
        api.load_network(network, part(server, "network."))
        lr, old, rng = self.server_lr, part(server, "adam."), uploads.stream("batches")
        adam = api.Learner(uploads, [network], lr=lr, weight_decay=1e-4, moments=old)
        for x, row in api.shuffled(api.numbered(public), self.server_batch, rng):
            out = network(x.to(device)).cpu()
            right = self.knows(out, y[row])
            adam.step(self.loss(out, y[row], pool[row], known[row] & ~right))
            pool[row[right]], filled[row[right]] = out[right].detach(), True
        learned = {**prefixed("adam.", adam.finish()), "filled": filled}
        logits = api.network_outputs(network, public, device)
        wanted = (~(filled | self.knows(logits, y))).nonzero().flatten().int()
        learned |= {"pool": pool * filled[:, None], "wanted": wanted, "logits": logits}
        return {**learned, **prefixed("network.", api.network_state(network))}
