"""FedKD (Wu, Wu, Lyu, Huang and Xie, Nature Communications 2022).

Every client has a private mentor and a copy of a small shared mentee. Both learn from the labels,
from each other's outputs and from each other's hidden states; the more reliable their
predictions, the more they listen to each other. Only updates of the mentee travel, both ways, as
the singular vectors that hold a share of their energy. The share rises over the rounds.

A participant of the last round gets the last update. One that sat out, or is new, gets the sum
of all updates, uncompressed: a whole mentee. Everybody knows the start from the seed. Running
statistics of batch normalisation in the mentee are part of its updates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedgh.core import wire
from fedgh.core.average import WeightedMean, load_network, network_state, update_spec
from fedgh.core.local import sgd_epochs
from fedgh.core.losses import distill
from fedgh.core.method import Method
from fedgh.core.names import Names
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload, part, prefixed
from fedgh.errors import WireError
from fedgh.models import shared_model

LEFT, RIGHT = ".left", ".right"


def compress(update: Payload, energy: float) -> Payload:
    """Replace every matrix by the fewest singular vectors that hold this share of its energy.

    A convolution counts as the matrix [outputs, everything else]; vectors travel as they are.
    """
    out: Payload = {}
    for name, tensor in update.items():
        if tensor.ndim < 2:
            out[name] = tensor
            continue
        u, s, v = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
        kept = s.double().square().cumsum(0)
        # The first rank that holds enough; rank 0 for a matrix of zeros.
        rank = int((kept < energy * kept[-1]).sum()) + 1 if kept[-1] > 0 else 0
        out[name + LEFT] = (u[:, :rank] * s[:rank]).contiguous()
        out[name + RIGHT] = v[:rank].contiguous()
    return out


def expand(factors: Payload) -> Payload:
    """Undo `compress`, but for the energy left out; convolutions stay matrices."""
    return {
        name.removesuffix(LEFT): tensor @ factors[name.removesuffix(LEFT) + RIGHT]
        if name.endswith(LEFT)
        else tensor
        for name, tensor in factors.items()
        if not name.endswith(RIGHT)
    }


def compressed_spec(update: Payload) -> wire.Spec:
    """What `compress` makes of it: for a matrix its factors, of any rank; for a vector itself."""
    spec: dict[str, wire.Field] = {}
    for name, tensor in update.items():
        if tensor.ndim < 2:
            spec[name] = wire.Field(tensor.dtype, tuple(tensor.shape))
        else:
            outputs, inputs = tensor.flatten(1).shape
            rank = wire.Dim(f"rank of {name}", min(outputs, inputs))
            spec[name + LEFT] = wire.Field(tensor.dtype, (outputs, rank))
            spec[name + RIGHT] = wire.Field(tensor.dtype, (rank, inputs))
    return spec


def plus(a: Payload, b: Payload) -> Payload:
    """A + b, in the shapes of a."""
    return {name: tensor + b[name].view_as(tensor) for name, tensor in a.items()}


@dataclass(frozen=True)
class FedKD(Method):
    """The share of energy kept rises linearly from `energy_start` to `energy_end`."""

    name: ClassVar[str] = "fedkd"
    weighs_by_examples: ClassVar[bool] = True

    energy_start: Annotated[float, Field(gt=0, le=1)] = 0.95  # kept of each matrix in round 1
    energy_end: Annotated[float, Field(gt=0, le=1)] = 0.98  # and in the last round
    shared: Annotated[str, Names.NETWORK] = "cnn5"  # the extractor of the mentee

    def energy(self, round: int, rounds: int) -> float:
        """The share kept in a round, the last of which keeps `energy_end`."""
        return self.energy_start + (self.energy_end - self.energy_start) * round / rounds

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """No update yet. The clock counts rounds: done, and in all."""
        start = network_state(shared_model(self.shared, task))
        nothing = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        return {
            **prefixed("sum.", nothing),
            "took_part": torch.zeros(task.num_clients, dtype=torch.bool),  # in the last round
            "clock": torch.tensor([0, task.rounds]),
        }

    def broadcast(self, server: Payload, client_id: int) -> Payload:
        """The last update to those who know the sum before it; the sum to all others."""
        if server["clock"][0] == 0:
            return {}
        known = "last." if server["took_part"][client_id] else "sum."
        return {name: tensor for name, tensor in server.items() if name.startswith(known)}

    def sendable(self, server: Payload) -> Payload:
        """Also the sum when nobody has sat out: somebody will."""
        return {name: t for name, t in server.items() if name.startswith(("last.", "sum."))}

    def init_client(self, client: Client) -> None:
        """W of the hidden loss: from the mentee's hidden states to the mentor's."""
        width = client.task.rep_dim
        client.modules["projection"] = nn.Linear(width, width, bias=False)

    def loss(self, client: Client, mentee: SplitModel, x: Tensor, y: Tensor) -> Tensor:
        """Labels for both; mutual distillation and the hidden loss by how well both do."""
        mentor = client.model
        mentor_hidden, mentee_hidden = mentor.represent(x), mentee.represent(x)
        mentor_logits, mentee_logits = mentor.header(mentor_hidden), mentee.header(mentee_hidden)
        labels = cross_entropy(mentor_logits, y) + cross_entropy(mentee_logits, y)
        mutual = distill(mentee_logits, mentor_logits) + distill(mentor_logits, mentee_logits)
        hidden = mse_loss(mentor_hidden, client.modules["projection"](mentee_hidden))
        return labels + (mutual + hidden) / labels.detach()

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Let mentor and mentee teach each other; send the mentee's update, compressed."""
        mentee = shared_model(self.shared, client.task).to(client.device)
        before = network_state(mentee)
        if down:
            last, whole = expand(part(down, "last.")), part(down, "sum.")
            client.memory = plus(client.memory, last) if last else whole
            before = plus(before, client.memory)
            load_network(mentee, before)
        else:  # the first round: no update yet
            client.memory = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
        sgd_epochs(
            client,
            lambda x, y: self.loss(client, mentee, x, y),
            [client.model, mentee, client.modules["projection"]],
        )
        update = {name: after - before[name] for name, after in network_state(mentee).items()}
        return compress(update, self.energy(client.round, client.task.rounds))

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """The mean of the updates, weighted by the numbers of training samples, compressed."""
        mean = WeightedMean()
        took_part = torch.zeros_like(server["took_part"])
        for upload in uploads:
            mean.add(expand(upload.payload), upload.num_examples)
            took_part[upload.client_id] = True
        if not took_part.any():
            return server
        round, rounds = (server["clock"] + torch.tensor([1, 0])).tolist()
        last = compress(mean.value(if_none={}), self.energy(round, rounds))
        return {
            **prefixed("sum.", plus(part(server, "sum."), expand(last))),
            **prefixed("last.", last),
            "took_part": took_part,
            "clock": torch.tensor([round, rounds]),
        }

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """An update, compressed."""
        return compressed_spec(part(server, "sum."))

    def check_upload(self, task: Task, payload: Payload, largest_norm: float) -> None:
        """The norms of factors say little about that of their product."""
        for name, tensor in expand(payload).items():
            norm = wire.largest_row_norm(tensor)
            if norm > largest_norm:
                raise WireError(f"'{name}' has a row of norm {norm:.4g}, above {largest_norm:g}")

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """Nothing in the first round; later an update, or the sum of all."""
        whole = network_state(shared_model(self.shared, client.task))
        return [
            {},
            compressed_spec(prefixed("last.", whole)),
            update_spec(prefixed("sum.", whole)),
        ]
