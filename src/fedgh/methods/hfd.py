"""HFD, hybrid federated distillation (Ahn, Simeone and Kang, PIMRC 2019).

FD with an input for each target. A client sends, once, the mean of its inputs of each class, and
every round its mean softmax outputs. The other clients' mean output of a class is what its network
should say to the other clients' mean input of that class: mixup over a whole class.
"""

from math import prod
from typing import Literal

import torch
from torch import Tensor, cat
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Dim, Field, Payload, Shapes, class_table, part, prefixed
from fedgh.methods.fd import collected, mean_of_others, no_rows


def inputs_of(dim: str, shapes: Shapes) -> dict[str, Field]:
    """Return the spec of some classes, and of an input for each of them."""
    some = Dim(dim, shapes.task.num_classes)
    labels = Field(torch.int32, (some,), classes=some.most)
    return {"classes": labels, "means": Field(torch.float32, (some, prod(shapes.task.input_shape)))}


def targets(_: api.Method, shapes: Shapes) -> api.Spec:
    """Return the spec of an input for each target, and of what the server wants to know."""
    wanted = Field(torch.int32, (1,), at_least=0, at_most=1)  # the client's mean inputs, or not
    return {"inputs": inputs_of("classes", shapes)["means"], "wanted": wanted}


class HFD(api.Method):
    """A class that no other participant of the last round held has no target."""

    family = "data-free distillation"
    about = "Clients learn the other clients' mean outputs at the other clients' mean inputs."
    mean_inputs = api.Own(lambda _, s: inputs_of("shown", s), about="once mean inputs per class")
    up = api.PerClass("output") + api.Named("input.", mean_inputs)
    down = api.PerClass("output") + api.Own(targets, about="mean inputs per class")

    gamma: api.NonNegative = 0.1  # weight of the targets; its papers' own is unknown
    classes: Literal["all", "own"] = "all"  # the classes whose targets a client gets

    def init_server(self, task: api.Task, models: api.Models, rng: torch.Generator) -> Payload:
        if not task.input_shape:
            raise api.ConfigError("hfd needs inputs of one shape (data.shape, if they are private)")
        outputs, inputs = no_rows(task.num_classes), no_rows(prod(task.input_shape))
        return {**prefixed("output.", outputs), **prefixed("input.", inputs)}

    def broadcast(self, server: Payload, to: api.Recipient) -> Payload:
        known = [part(server, "output."), part(server, "input.")]
        s, x = (mean_of_others(each, to.id, known[0]["means"].shape[1]) for each in known)
        own = to.classes if self.classes == "own" else None  # unknown of a new client: all
        sent = class_table.select(s | {"filled": s["filled"] & x["filled"]}, own)
        wanted = torch.tensor([int(to.id not in known[1]["owner"])], dtype=torch.int32)
        return {**sent, "inputs": x["means"][sent["classes"].long()], "wanted": wanted}

    def client_update(self, client: Client, down: Payload) -> Payload:
        s, x_mean = down["means"], down["inputs"].unflatten(1, client.task.input_shape)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            # In one batch: mean inputs alone would bend the statistics of batch normalisation.
            logits = client.model(cat([x, x_mean]) if len(s) else x)
            value = cross_entropy(logits[: len(y)], y)
            return value + self.gamma * cross_entropy(logits[len(y) :], s) if len(s) else value

        api.train(client, loss)
        inputs = api.class_means(client, lambda x: x.flatten(1))
        told = {name: rows[: len(rows) * int(down["wanted"])] for name, rows in inputs.items()}
        return {**api.class_outputs(client), **prefixed("input.", told)}

    def server_update(self, server: Payload, uploads: api.Uploads) -> Payload:
        sent = [(upload.client_id, upload.payload) for upload in uploads]
        if not sent:
            return server
        old, new = part(server, "input."), collected([(k, part(p, "input.")) for k, p in sent])
        others = ~torch.isin(old["owner"], new["owner"])
        inputs = {name: cat([column[others], new[name]]) for name, column in old.items()}
        return {**prefixed("output.", collected(sent)), **prefixed("input.", inputs)}
