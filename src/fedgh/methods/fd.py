"""FD, federated distillation (Jeong, Oh, Kim, Park, Bennis and Kim, 2018).

Clients exchange, for each of their classes, the mean of their softmax outputs. A client is
pulled towards what the *other* participants of the last round say about its classes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from fedgh.core import wire
from fedgh.core.classwise import (
    answer,
    as_table,
    class_sums,
    classes_to_answer,
    for_each_class,
    nearest_distributions,
    remember_classes,
)
from fedgh.core.local import class_means, sgd_epochs
from fedgh.core.method import Method, Sharing
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload
from fedgh.errors import WireError


def distillation(logits: Tensor, y: Tensor, targets: Tensor, filled: Tensor) -> Tensor:
    """Cross-entropy between the target of each sample's class and the sample's output.

    Mean over the batch; a sample whose class has no target adds nothing.
    """
    return -(filled[y, None] * targets[y] * log_softmax(logits, dim=1)).sum() / len(y)


def _outputs(task: Task) -> wire.Field:
    """A mean of softmax outputs, with room for rounding."""
    return wire.Field(torch.float32, (task.num_classes,), at_least=-1e-3, at_most=1 + 1e-3)


@dataclass(frozen=True)
class FD(Method):
    """A class that no other participant of the last round held has no target.

    A newcomer, whose classes the server does not know yet, is told about all there are.
    """

    name: ClassVar[str] = "fd"
    shares: ClassVar[Sharing] = "class means"
    longest: ClassVar[float] = 1.0

    gamma: Annotated[float, Field(ge=0)] = 0.1  # its paper has a gamma but names no value

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """Nobody has said anything yet."""
        return {
            "known": torch.zeros(task.num_clients, task.num_classes, dtype=torch.bool),
            "owner": torch.zeros(0, dtype=torch.int32),
            "classes": torch.zeros(0, dtype=torch.int32),
            "means": torch.zeros(0, task.num_classes),
        }

    def broadcast(self, server: Payload, client_id: int) -> Payload:
        """For each of the client's classes the mean over the others: leave one out."""
        others = server["owner"] != client_id
        sums, holders = class_sums(
            server["classes"][others], server["means"][others], server["known"].shape[1]
        )
        mine = classes_to_answer(server["known"], client_id, holders > 0)
        return answer(mine, sums[mine] / holders[mine, None])

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train with the distillation term; average the outputs by class.

        Noise makes of them what no output is, and a negative target would reward a model without
        end for never saying a class: so the nearest distributions are sent.
        """
        table, filled = as_table(down["classes"], down["rows"], client.task.num_classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = client.model(x)
            return cross_entropy(logits, y) + self.gamma * distillation(logits, y, table, filled)

        sgd_epochs(client, loss)
        own = class_means(client, self.summarised(client), self.longest)
        if client.privacy is not None:
            own["means"] = nearest_distributions(own["means"])
        return own

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """Keep what this round's participants have said."""
        said = list(uploads)
        if not said:
            return server
        return {
            "known": remember_classes(server["known"], said),
            "owner": torch.cat([torch.full_like(u.payload["classes"], u.client_id) for u in said]),
            "classes": torch.cat([u.payload["classes"] for u in said]),
            "means": torch.cat([u.payload["means"] for u in said]),
        }

    def summarised(self, client: Client) -> Callable[[Tensor], Tensor]:
        """Softmax outputs."""
        return lambda x: client.model(x).softmax(dim=1)

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """One mean output for each local class."""
        return for_each_class(task, means=_outputs(task))

    def check_upload(self, task: Task, payload: Payload, largest_norm: float) -> None:
        """A mean of distributions is one: its parts add up to 1."""
        off = (payload["means"].double().sum(1) - 1).abs()
        if bool((off > 0.01).any()):
            raise WireError(f"'means' has a row that adds up to 1 ± {float(off.max()):.3g}")

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """Mean outputs for some classes."""
        return [for_each_class(client.task, rows=_outputs(client.task))]

    def paper_bytes(self, task: Task, local_classes: int) -> int:
        """Mean outputs up and down, without labels."""
        return 2 * 4 * local_classes * task.num_classes
