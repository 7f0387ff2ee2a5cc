"""Minimal methods that use public data."""

from typing import ClassVar

import torch
from torch.nn.functional import cross_entropy, mse_loss

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Task, Uploads

CHORUS = "tests.support.public:Chorus"
LABELLED = "tests.support.public:Labelled"
DISTANT = "tests.support.public:Distant"


class Chorus(api.Method):
    """Clients learn the mean logits of all clients for public samples."""

    up = down = api.PublicOutputs()
    public_for: ClassVar[api.PublicFor] = "all"

    def init_server(self, task: Task, models: api.Models, rng: torch.Generator) -> Payload:
        """Return the mean before the first round."""
        return {"logits": torch.zeros(task.public_size, task.num_classes)}

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train on both kinds of data; send logits of the public samples."""
        public, model = client.public, client.model
        assert len(public) == client.task.public_size
        api.train(
            client,
            lambda x, row: mse_loss(model(x), down["logits"][row]),
            on=api.numbered(public),
            augment=(),
            stream="public",
        )
        api.train(client, lambda x, y: cross_entropy(model(x), y))
        client.metrics["labels"] = float(public.labels.sum())
        return {"logits": api.outputs(client, model, public)}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        """Return the mean of the logits."""
        said = [upload.payload["logits"] for upload in uploads]
        return {"logits": torch.stack(said).mean(0)} if said else server


class Labelled(Chorus):
    """A method that reads the labels of public samples."""

    public_labels = True


class Distant(Chorus):
    """A method whose server alone has public data."""

    public_for = "server"

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Return the download: this client has no public samples."""
        assert client.public_examples is None
        return down
