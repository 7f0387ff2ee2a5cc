"""FedDF, ensemble distillation (Lin, Kong, Stich and Jaggi, NeurIPS 2020), Algorithms 1 and 3.

The server averages the participants' networks of each architecture. Then it trains each average
towards the mean logits of all participants, on unlabelled public data.
"""

from typing import Annotated

from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Uploads, group_prefix, part, prefixed

Steps = Annotated[int, Field(ge=0)]


def train_received(client: Client, down: Payload) -> Payload:
    """Train the received network, and record its accuracy before; return its new state."""
    model, held = api.load_network(client.model, down), client.data.validation
    right = api.outputs(client, model, held).argmax(1) == held.labels
    client.metrics["received_accuracy"] = float(right.double().mean())
    api.train(client, lambda x, y: cross_entropy(model(x), y))
    return api.network_state(model)


def distil(
    uploads: Uploads, teacher: Tensor, students: list[nn.Module], steps: int, batch: int, lr: float
) -> None:
    """Train each student towards softmax(teacher), logits [P, C] of the public samples."""
    teacher = teacher.to(uploads.device)
    loss = api.on_public(uploads, students, batch, lambda z, i: api.distill(teacher[i], z))
    api.learn(uploads, students, loss, steps, lr=lr, schedule="cosine", clip=5.0)
    if steps:
        uploads.metrics["server_loss"] /= len(students)  # the loss is their sum


class FedDF(api.Method):
    """A participant, new or not, starts from the fused network of its architecture."""

    family = "public data on the server"
    about = "The server averages equal networks; each average learns the outputs of all networks."
    up = down = api.Network("own")
    public_for, weighs_by_examples = "server", True

    server_steps: Steps = 300  # the code: 10,000; 0: averaging alone
    server_batch: api.Several = 128  # public samples in a step
    server_lr: api.Positive = 0.001  # of Adam; falls to zero over the steps of a round
    uniform: bool = False  # average without weights, as the code; the paper has n_k

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.states_by_group(models)

    def broadcast(self, server: Payload, to: api.Recipient) -> Payload:
        return part(server, group_prefix(to.group))

    def client_update(self, client: Client, down: Payload) -> Payload:
        return train_received(client, down)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        means, ensemble = api.GroupMeans(), api.WeightedMean()
        students: dict[str, nn.Module] = {}
        for upload in uploads:
            if self.server_steps:
                net = api.load_network(uploads.network(upload.client_id), upload.payload)
                logits = api.public_outputs(uploads, net)
                if logits is None:
                    continue
                ensemble.add({"logits": logits}, 1)
                students[group_prefix(upload.group)] = net  # the mean will replace its weights
            means.add(upload, 1 if self.uniform else upload.num_examples)
        server = means.value(if_none=server)
        if not students:
            return server
        for group, student in students.items():
            api.load_network(student, part(server, group))
        teacher, nets = ensemble.value(if_none={})["logits"], [*students.values()]
        distil(uploads, teacher, nets, self.server_steps, self.server_batch, self.server_lr)
        for group, student in students.items():
            server |= prefixed(group, api.network_state(student))
        return server
