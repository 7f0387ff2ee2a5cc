"""The round of methods whose clients agree on outputs for public samples: FedMD and its relatives.

A client learns what the last round agreed on, trains on its private data, and sends outputs for
the public samples of this round.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import CLOCK, Client, Examples, Message, Payload, Upload

Loss = Callable[[Tensor, Tensor], Tensor]


def digest(
    client: Client, on: Examples, targets: Tensor, loss: Loss, epochs: int, batch: int, lr: float
) -> None:
    """Move the outputs for public samples, as they are, towards their targets."""

    def to_targets(x: Tensor, row: Tensor) -> Tensor:
        return loss(client.model(x), targets[row])

    api.train_public(client, to_targets, on, epochs=epochs, batch_size=batch, lr=lr)


def revisit(client: Client) -> None:
    """Train on the client's private samples."""
    api.train(client, lambda x, y: cross_entropy(client.model(x), y))


class PublicConsensus(api.Method):
    """A counter of the rounds that brought uploads determines the public samples of a round."""

    family, public_for = "public data on clients", "all"
    kind: ClassVar[Literal["logits", "probabilities"]] = "logits"

    per_round: api.Several = 5000  # public samples of a round; all, if there are not more
    learn_from: Literal["all", "own"] = "all"  # "own", a control: no other client's outputs

    @property
    def up(self) -> Message:  # type: ignore[override]
        """Outputs for the public samples of this round."""
        return api.PublicOutputs(self.kind, "per_round")

    @property
    def down(self) -> Message:  # type: ignore[override]
        """The consensus on the public samples of the last round; none before there is one."""
        return api.OneOf(CLOCK, CLOCK + self.up)

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.start_clock()

    def client_update(self, client: Client, down: Payload) -> Payload:
        agreed = client.memory if self.learn_from == "own" else down
        self.fit(client, self.samples(client, agreed), agreed.get(self.kind))
        now, model = {"clock": down["clock"] + 1}, client.model
        of = model if self.kind == "logits" else lambda x: model(x).softmax(1)
        up: Payload = {self.kind: api.outputs(client, of, self.samples(client, now))}
        own = self.combine([Upload(client.id, 0, up)]) if self.learn_from == "own" else {}
        client.memory = now | {name: tensor.to(client.device) for name, tensor in own.items()}
        return up

    def samples(self, client: Client, agreed: Payload) -> Examples:
        """Return the public samples that a consensus is about."""
        number = int(agreed.get("clock", 0))
        return api.public_draw(client.public, client.task, number, self.per_round)

    @abstractmethod
    def fit(self, client: Client, samples: Examples, targets: Tensor | None) -> None:
        """Learn the targets of public samples, if there are any; train on private samples."""

    def combine(self, uploads: Iterable[Upload]) -> Payload:
        """Return the consensus of uploads; nothing if there are none."""
        return api.plain_mean(uploads, if_none={})

    def server_update(self, server: Payload, uploads: api.Uploads) -> Payload:
        agreed = self.combine(uploads)
        return {**agreed, "clock": server["clock"] + 1} if agreed else server
