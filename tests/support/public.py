"""Methods that use public data, as small as they can be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch.nn.functional import cross_entropy, mse_loss

from fedgh.core import wire
from fedgh.core.batches import in_order
from fedgh.core.method import Method
from fedgh.core.types import Client, Payload, SplitModel, Task, Upload

CHORUS = "tests.support.public:Chorus"
LABELLED = "tests.support.public:Labelled"
DISTANT = "tests.support.public:Distant"


@dataclass(frozen=True)
class Chorus(Method):
    """Clients learn to say of public samples what all of them said on average."""

    name: ClassVar[str] = "chorus"
    public_for: ClassVar[Literal["none", "server", "all"]] = "all"

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """Return the mean before the first round."""
        return {"mean": torch.zeros(task.public_size, task.num_classes)}

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train on both kinds of data; send logits of the public samples."""
        assert client.public is not None
        ((x, y),) = in_order(client.public, client.device)
        assert len(x) == client.task.public_size
        client.metrics["labels"] = float(y.sum())

        client.model.train()
        optimizer = torch.optim.SGD(client.model.parameters(), lr=client.local.lr)
        for own, labels in in_order(client.data.train, client.device):
            optimizer.zero_grad()
            near = mse_loss(client.model(x), down["mean"])
            (cross_entropy(client.model(own), labels) + near).backward()
            optimizer.step()
        optimizer.zero_grad()
        client.model.eval()
        with torch.no_grad():
            return {"mean": client.model(x)}

    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """Return the mean of what was said."""
        said = [upload.payload["mean"] for upload in uploads]
        return {"mean": torch.stack(said).mean(0)} if said else server

    def upload_spec(self, task: Task, server: Payload) -> wire.Spec:
        """Return a row of logits for each public sample."""
        return {"mean": wire.Field(torch.float32, (task.public_size, task.num_classes))}

    def download_specs(self, client: Client) -> list[wire.Spec]:
        """Return the same."""
        return [self.upload_spec(client.task, {})]


@dataclass(frozen=True)
class Labelled(Chorus):
    """The same for a method that reads the labels of public samples."""

    name: ClassVar[str] = "labelled"
    public_labels: ClassVar[bool] = True


@dataclass(frozen=True)
class Distant(Chorus):
    """A method whose server alone has public data."""

    name: ClassVar[str] = "distant"
    public_for: ClassVar[Literal["none", "server", "all"]] = "server"

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Return what was sent: there are no public samples here."""
        assert client.public is None
        return down
