"""FedProto (Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, AAAI 2022), Algorithm 1.

Clients exchange prototypes: the mean representation of each class, with the number of samples
behind it. A client's representations are pulled towards the global prototypes of its classes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgh.core import wire
from fedgh.core.classwise import (
    answer,
    as_table,
    classes_to_answer,
    for_each_class,
    mean_of_means,
    remember_classes,
)
from fedgh.core.local import class_statistics, sgd_epochs
from fedgh.core.method import Method, Sharing
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload


def distance(representation: Tensor, y: Tensor, prototypes: Tensor, filled: Tensor) -> Tensor:
    """Mean squared distance to the prototype of each sample's class.

    Mean over batch and features; a sample whose class has no prototype adds nothing.
    """
    return (filled[y, None] * (representation - prototypes[y]) ** 2).mean()


@dataclass(frozen=True)
class FedProto(Method):
    """A class that no participant of a round held keeps its prototype from before.

    A newcomer, whose classes the server does not know yet, gets all prototypes.
    """

    name: ClassVar[str] = "fedproto"
    shares: ClassVar[Sharing] = "class means"

    lam: Annotated[float, Field(ge=0)] = 1.0  # lambda: weight of the distance to the prototypes

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """There are no prototypes yet."""
        return {
            "known": torch.zeros(task.num_clients, task.num_classes, dtype=torch.bool),
            "prototypes": torch.zeros(task.num_classes, task.rep_dim),
            "filled": torch.zeros(task.num_classes, dtype=torch.bool),
        }

    def broadcast(self, server: Payload, client_id: int) -> Payload:
        """The global prototypes of the client's own classes."""
        mine = classes_to_answer(server["known"], client_id, server["filled"])
        return answer(mine, server["prototypes"][mine])

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train towards the prototypes; compute one's own."""
        table, filled = as_table(down["classes"], down["rows"], client.task.num_classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            representation = client.model.represent(x)
            logits = client.model.header(representation)
            return cross_entropy(logits, y) + self.lam * distance(representation, y, table, filled)

        sgd_epochs(client, loss)
        return class_statistics(client)

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """For each class the mean of its prototypes, weighted by their counts."""
        said = list(uploads)
        if not said:
            return server
        found = mean_of_means([upload.payload for upload in said], len(server["filled"]))
        seen = found["classes"].long()
        prototypes, filled = server["prototypes"].clone(), server["filled"].clone()
        prototypes[seen] = found["means"]
        filled[seen] = True
        return {
            "known": remember_classes(server["known"], said),
            "prototypes": prototypes,
            "filled": filled,
        }

    def summarised(self, client: Client) -> Callable[[Tensor], Tensor]:
        """Representations."""
        return client.model.represent

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """One prototype for each local class, and how many samples it stands for."""
        return for_each_class(
            task,
            means=wire.Field(torch.float32, (task.rep_dim,)),
            counts=wire.Field(torch.int32, (), at_least=1),
        )

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """The prototypes of some classes."""
        width = client.task.rep_dim
        return [for_each_class(client.task, rows=wire.Field(torch.float32, (width,)))]

    def paper_bytes(self, task: Task, local_classes: int) -> int:
        """Prototypes up and down, without labels and counts."""
        return 2 * 4 * local_classes * task.rep_dim
