"""FedGH (Yi, Wang, Liu, Shi and Yu, ACM MM 2023), Algorithm 1.

Clients keep their own extractors and upload one mean representation per class (LAR); the
server trains the shared header on those pairs and sends it to the next participants.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgh.core import wire
from fedgh.core.classwise import for_each_class
from fedgh.core.header import LinearSGD, header_spec, linear_header
from fedgh.core.local import class_means, sgd_epochs
from fedgh.core.method import Method, Sharing
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload


@dataclass(frozen=True)
class FedGH(Method):
    """`server_lr = 0` freezes the header at its random start: the paper's missing ablation."""

    name: ClassVar[str] = "fedgh"
    welcomes: ClassVar[bool] = True
    shares: ClassVar[Sharing] = "class means"

    server_lr: Annotated[float, Field(ge=0)] = 0.01  # of the header; 0 freezes it
    server_batch: Literal["pair", "client"] = "pair"  # one step per pair, or per client
    server_epochs: Annotated[int, Field(ge=1)] = 1  # passes over the pairs of a round

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """The global header at its random start."""
        return linear_header(task, rng)

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Clients Side: take over the global header, train the whole model, average by class."""
        client.model.header.load_state_dict(down)
        sgd_epochs(client, lambda x, y: cross_entropy(client.model(x), y))
        return class_means(client)

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """Server Side: train the header on each client's pairs as soon as they are in."""
        if self.server_lr == 0:
            return server
        header = LinearSGD(server, self.server_lr)
        step = header.step_each if self.server_batch == "pair" else header.step_batch
        to_replay: list[Payload] = []
        for upload in uploads:
            step(upload.payload["means"], upload.payload["classes"])
            if self.server_epochs > 1:
                to_replay.append(upload.payload)
        for _ in range(self.server_epochs - 1):
            for pairs in to_replay:
                step(pairs["means"], pairs["classes"])
        return header.state()

    def summarised(self, client: Client) -> Callable[[Tensor], Tensor]:
        """Representations."""
        return client.model.represent

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """One pair per local class, and nothing else: no counts, no distribution."""
        return for_each_class(task, means=wire.Field(torch.float32, (task.rep_dim,)))

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """The global header."""
        return [header_spec(client.task)]

    def paper_bytes(self, task: Task, local_classes: int) -> int:
        """Labels and means up; the header's weights, without its bias, down."""
        return 4 * (local_classes * (task.rep_dim + 1) + task.rep_dim * task.num_classes)
