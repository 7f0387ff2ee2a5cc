"""The smallest method of each family that the core has to carry, for the contract tests.

They are named by their import paths, as methods of other packages are.
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
    "tests.support.families:Consensus": PUBLIC,
    "tests.support.families:Distils": PUBLIC,
    "tests.support.families:Generates": [],
    "tests.support.families:Cuts": ["model.extractors=mlp,mlp@1/2,mlp@1/4"],
}
"""The methods below, and the settings that they need."""

WITHOUT_BUILT_IN = ("Consensus", "Distils", "Cuts")
"""Those of families that have no built-in method yet."""

OTHERS = [name for name in FAMILIES if name.endswith(WITHOUT_BUILT_IN)]


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


class Distils(api.Method):
    """A server that distils on public data for each architecture, after FedDF."""

    up = down = api.Network("own")
    public_for = "server"
    weighs_by_examples = True

    steps: int = 3

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        return api.states_by_group(models)

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        return part(server, api.group_prefix(to.group))

    def client_update(self, client: Client, down: Payload) -> Payload:
        api.load_network(client.model, down)
        api.train(client, lambda x, y: cross_entropy(client.model(x), y))
        return api.network_state(client.model)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        means: dict[int, api.WeightedMean] = {}
        teachers, owner = api.WeightedMean(), {}
        for upload in uploads:
            means.setdefault(upload.group, api.WeightedMean()).add(
                upload.payload, upload.num_examples
            )
            owner[upload.group] = upload.client_id
            teacher = uploads.network(upload.client_id)
            api.load_network(teacher, upload.payload)
            teachers.add({"logits": api.network_outputs(teacher, uploads.public)}, 1)
        target = teachers.value(if_none={}).get("logits")
        batches = api.forever(api.numbered(uploads.public), 8, uploads.stream("distil"))
        for group, mean in means.items():
            assert target is not None
            wanted, student = target, uploads.network(owner[group])
            api.load_network(student, mean.value(if_none={}))

            def loss(student: nn.Module = student, wanted: Tensor = wanted) -> Tensor:
                x, row = next(batches)
                return api.distill(wanted[row], student(x))

            api.learn(uploads, [student], loss, self.steps, lr=1e-3, schedule="cosine")
            server = server | prefixed(api.group_prefix(group), api.network_state(student))
        return server


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


class Cuts(api.Method):
    """Clients whose networks are cuts of a global one, each with its own shapes, after HeteroFL."""

    up = down = api.Network("own")

    whole: api.NetworkName = "mlp"

    def shared_network(self, task: Task) -> api.SplitModel:
        return api.shared_model(self.whole, task)

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        whole = self.shared_network(task)
        for model in models:
            api.check_cut(whole, model, task.input_shape)
        return api.network_state(whole)

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        return api.take(server, api.cut(api.sizes_of(server), to.sizes))

    def client_update(self, client: Client, down: Payload) -> Payload:
        api.load_network(client.model, down)
        api.train(client, lambda x, y: cross_entropy(client.model(x), y))
        return api.network_state(client.model)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        mean = api.CoordinateMean(api.sizes_of(server))
        for upload in uploads:
            here = api.cut(api.sizes_of(server), api.sizes_of(upload.payload))
            mean.add(upload.payload, here, 1)
        return mean.value(server)
