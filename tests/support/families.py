"""Methods of each kind that engines must carry: built-in ones, and small ones of these tests.

The latter are named by their import paths, as methods of other packages are.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Recipient, Task, Uploads, part, prefixed

PUBLIC = ["public.name=held-out", "public.samples=40"]
ONE_ARCHITECTURE = ["model.extractors=tests.support.tiny:noisy"]  # with batch norm and dropout

FAMILIES: dict[str, list[str]] = {
    "tests.support.families:Phases": ONE_ARCHITECTURE,
    "fedmd": [*PUBLIC, "method.per_round=25"],
    "feddf": [*PUBLIC, "method.server_steps=3", "method.server_batch=8"],
    "tests.support.families:Generates": [],
    "heterofl": ["model.extractors=mlp,mlp@1/2,mlp@1/4", "method.shared=mlp"],
}
"""A method of each kind that engines must carry, and the settings that it needs."""


class Phases(api.Method):
    """A partial model in two phases, after FedRep: first the header, then the extractor."""

    same_part = "extractor"
    up = down = api.Network("own", part="extractor")

    header_epochs: api.Count = 2

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        return api.network_state(models[0].extractor)

    def client_update(self, client: Client, down: Payload) -> Payload:
        model = client.model

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        api.load_network(model.extractor, down)
        api.train(
            client,
            loss,
            [model.header],
            epochs=self.header_epochs,
            lr=0.02,
            stream="header",
            metric="header_loss",
        )
        api.train(client, loss, [model.extractor])
        return api.network_state(model.extractor)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.plain_mean(uploads, if_none=server)


class Consensus(api.Method):
    """Logits of public samples as upload and download, after FedMD."""

    up = api.PublicOutputs()
    down = api.OneOf(api.NOTHING, api.PublicOutputs())
    public_for = "all"

    def client_update(self, client: Client, down: Payload) -> Payload:
        if down:
            target = down["logits"]
            api.train(
                client,
                lambda x, row: mse_loss(client.model(x), target[row]),
                on=api.numbered(client.public),
                epochs=1,
                augment=(),
                stream="digest",
                metric="digest_loss",
            )
        api.train(client, lambda x, y: cross_entropy(client.model(x), y))
        return {"logits": api.outputs(client, client.model, client.public)}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.plain_mean(uploads, if_none=server)


class Generates(api.Method):
    """A generator that the server trains with Adam, whose moments are state, after FedGen."""

    up = api.HEADER
    down = api.HEADER + api.Named("generator.", api.Network("shared"))
    noise: api.Count = 4

    def shared_network(self, task: Task) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.seed)
            return nn.Sequential(
                nn.Linear(self.noise + task.num_classes, task.rep_dim), nn.BatchNorm1d(task.rep_dim)
            )

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        generator = api.network_state(self.shared_network(task))
        return {**api.linear_header(task, rng), **prefixed("generator.", generator)}

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        return {name: tensor for name, tensor in server.items() if not name.startswith("adam.")}

    def sendable(self, server: Payload) -> Payload:
        return self.broadcast(server, Recipient(0))

    def client_update(self, client: Client, down: Payload) -> Payload:
        generator = self.shared_network(client.task).to(client.device)
        api.load_network(generator, part(down, "generator."))
        header = {name: down[name] for name in ("weight", "bias")}
        client.model.header.load_state_dict(header)
        noise = client.stream("noise")

        def loss(x: Tensor, y: Tensor) -> Tensor:
            made = generator(self._inputs(y, client.task, noise))
            guessed = cross_entropy(client.model.header(made.detach()), y)
            return cross_entropy(client.model(x), y) + 0.1 * guessed

        api.train(client, loss)
        return api.network_state(client.model.header)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        headers = [upload.payload for upload in uploads]
        if not headers:
            return server
        generator = self.shared_network(uploads.task)
        api.load_network(generator, part(server, "generator."))
        rng = uploads.stream("labels")

        def loss() -> Tensor:
            y = torch.randint(uploads.task.num_classes, (8,), generator=rng)
            made = generator(self._inputs(y, uploads.task, rng))
            each = [cross_entropy(made @ own["weight"].T + own["bias"], y) for own in headers]
            return torch.stack(each).mean()

        moments = api.learn(uploads, [generator], loss, 3, lr=0.01, moments=part(server, "adam."))
        mean = {name: torch.stack([own[name] for own in headers]).mean(0) for name in headers[0]}
        generated = prefixed("generator.", api.network_state(generator))
        return {**mean, **generated, **prefixed("adam.", moments)}

    def _inputs(self, y: Tensor, task: Task, rng: Generator) -> Tensor:
        noise = torch.randn(len(y), self.noise, generator=rng)
        return torch.cat([noise, one_hot(y, task.num_classes)], dim=1)
