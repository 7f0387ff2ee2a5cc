"""LG-FedAvg (Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, 2020).

Extractors stay local, headers are averaged with weights n_k / n. (Whatever batch normalisation
an extractor has stays with it.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import cross_entropy

from fedgh.core import wire
from fedgh.core.average import mean_by_examples, network_state
from fedgh.core.header import header_spec, linear_header
from fedgh.core.local import sgd_epochs
from fedgh.core.method import Method
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload


@dataclass(frozen=True)
class LGFedAvg(Method):
    """A participant, new or not, starts its round with the global header."""

    name: ClassVar[str] = "lg_fedavg"
    welcomes: ClassVar[bool] = True
    weighs_by_examples: ClassVar[bool] = True

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """The global header at its random start."""
        return linear_header(task, rng)

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Take over the global header, train the whole model, send the header back."""
        client.model.header.load_state_dict(down)
        sgd_epochs(client, lambda x, y: cross_entropy(client.model(x), y))
        return network_state(client.model.header)

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """The mean of the headers, weighted by the clients' numbers of training samples."""
        return mean_by_examples(uploads, if_none=server)

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """A header."""
        return header_spec(task)

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """The global header."""
        return [header_spec(client.task)]

    def paper_bytes(self, task: Task, local_classes: int) -> int:
        """The header, with its bias, up and down."""
        return 2 * 4 * (task.rep_dim + 1) * task.num_classes
