"""FedKD (Wu, Wu, Lyu, Huang and Xie, Nature Communications 2022).

Every client has a private network, the mentor, and a copy of a small shared network, the mentee.
Both learn from the labels, from each other's outputs and from each other's hidden states; the lower
their loss on the labels, the higher the weight of the other two. Only updates of the mentee are
sent, in both directions, as the singular vectors that hold a share of their energy. The share rises
over the rounds.

A participant that trained in the round of the last update receives that update. Another one, or a
new one, receives the sum of all updates, uncompressed: as large as a mentee. All clients make the
initial mentee from the seed. Running statistics of batch normalisation in the mentee are part of
its updates.
"""

from typing import Annotated

import torch
from pydantic import Field as Limits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedgh.core.low_rank import compress, compressed_spec, expand, plus
from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Recipient, Task, Uploads, distill, part, prefixed

MIN_DIVISOR = 1e-6
"""Lower bound of the divisor: a cross-entropy of zero would make the other losses infinite."""


def compressed_update(method: api.Method, shapes: api.Shapes) -> api.Spec:
    """Return the spec of a compressed update of the mentee."""
    return compressed_spec(api.network_state(method.shared_network(shapes.task)))


def whole_update(method: api.Method, shapes: api.Shapes) -> api.Spec:
    """Return the spec of an uncompressed sum of updates."""
    return api.update_spec(api.network_state(method.shared_network(shapes.task)))


class FedKD(api.Method):
    """The share of energy kept rises linearly from `energy_start` to `energy_end`."""

    family = "small shared network"
    about = "Two networks teach each other; updates of the small one cross as SVD factors."
    up = api.Own(compressed_update, about="factors of an update")
    down = api.OneOf(
        api.NOTHING,
        api.Named("last.", up),
        api.Named("sum.", api.Own(whole_update, about="sum of updates")),
    )
    weighs_by_examples = True

    energy_start: Annotated[float, Limits(gt=0, le=1)] = 0.95  # share of a matrix in round 1
    energy_end: Annotated[float, Limits(gt=0, le=1)] = 0.98  # share in the last round
    shared: api.NetworkName = "cnn5"  # the extractor of the mentee
    weight_constant: bool = True  # False differentiates the weight, like the authors' code

    def shared_network(self, task: Task) -> api.SplitModel:
        return api.shared_model(self.shared, task)

    def energy(self, round: int, rounds: int) -> float:
        """Return the share of energy that is sent in a round; `energy_end` in the last one."""
        return self.energy_start + (self.energy_end - self.energy_start) * round / rounds

    def init_server(self, task: Task, models: api.Models, rng: torch.Generator) -> Payload:
        start = api.network_state(self.shared_network(task))
        nothing = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        return {**prefixed("sum.", nothing), "updated": torch.tensor(0)}  # round of the last update

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        updated = int(server["updated"])
        if updated == 0:
            return {}
        prefix = "last." if to.last_round == updated else "sum."
        return {name: tensor for name, tensor in server.items() if name.startswith(prefix)}

    def init_client(self, client: Client) -> None:
        """Add W of the hidden loss, which maps the mentee's hidden states to the mentor's."""
        width = client.task.rep_dim
        client.modules["projection"] = nn.Linear(width, width, bias=False)

    def loss(self, client: Client, mentee: api.SplitModel, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss on labels, plus distillation and hidden loss divided by it."""
        mentor = client.model
        mentor_hidden, mentee_hidden = mentor.represent(x), mentee.represent(x)
        mentor_logits, mentee_logits = mentor.header(mentor_hidden), mentee.header(mentee_hidden)
        labels = cross_entropy(mentor_logits, y) + cross_entropy(mentee_logits, y)
        mutual = distill(mentee_logits, mentor_logits) + distill(mentor_logits, mentee_logits)
        hidden = mse_loss(mentor_hidden, client.modules["projection"](mentee_hidden))
        divisor = labels.detach() if self.weight_constant else labels
        return labels + (mutual + hidden) / divisor.clamp(min=MIN_DIVISOR)

    def client_update(self, client: Client, down: Payload) -> Payload:
        mentee = self.shared_network(client.task).to(client.device)
        before = api.network_state(mentee)
        if down:
            last, whole = expand(part(down, "last.")), part(down, "sum.")
            client.memory = plus(client.memory, last) if last else whole
            before = plus(before, client.memory)
            api.load_network(mentee, before)
        else:  # no update yet
            client.memory = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
        api.train(
            client,
            lambda x, y: self.loss(client, mentee, x, y),
            [client.model, mentee, client.modules["projection"]],
        )
        update = {n: after - before[n] for n, after in api.network_state(mentee).items()}
        return compress(update, self.energy(client.round, client.task.rounds))

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        mean = api.WeightedMean()
        for upload in uploads:
            mean.add(expand(upload.payload), upload.num_examples)
        update = mean.value(if_none={})
        if not update:
            return server
        last = compress(update, self.energy(uploads.round, uploads.task.rounds))
        whole = plus(part(server, "sum."), expand(last))
        updated = torch.tensor(uploads.round)
        return {**prefixed("sum.", whole), **prefixed("last.", last), "updated": updated}

    def check_upload(self, task: Task, payload: Payload, max_norm: float) -> None:
        """Raise WireError if a row of the product is too large: factors do not bound its norm."""
        for name, tensor in expand(payload).items():
            norm = api.largest_row_norm(tensor)
            if norm > max_norm:
                raise api.WireError(f"'{name}' has a row of norm {norm:.4g}, above {max_norm:g}")
