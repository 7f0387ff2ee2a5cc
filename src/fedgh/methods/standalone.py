"""Standalone: every client trains alone. The baseline that any federation has to beat."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch.nn.functional import cross_entropy

from fedgh.core import wire
from fedgh.core.header import linear_header
from fedgh.core.local import sgd_epochs
from fedgh.core.method import Method, Sharing
from fedgh.core.types import Client, Payload, Task, Upload


@dataclass(frozen=True)
class Standalone(Method):
    """With `reset_header` the header starts anew every round.

    Forgetting the last layer is known to regularise, and FedGH does it too when it replaces the
    local header by the global one. This ablation shows how much of its gain that alone explains.
    """

    name: ClassVar[str] = "standalone"
    shares: ClassVar[Sharing] = "nothing"

    reset_header: bool = False  # to a new random one, every round

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train on the local data; share nothing."""
        if self.reset_header:
            client.model.header.load_state_dict(
                linear_header(client.task, client.stream("reset-header"))
            )
        sgd_epochs(client, lambda x, y: cross_entropy(client.model(x), y))
        return {}

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """There is nothing to do."""
        return server

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """Nothing crosses."""
        return {}

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """Nothing crosses."""
        return [{}]

    def paper_bytes(self, task: Task, local_classes: int) -> int:
        """Nothing crosses."""
        return 0
