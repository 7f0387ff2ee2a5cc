"""HeteroFL (Diao, Ding and Tarokh, ICLR 2021).

The network of every client is a part of one whole network: the first units of each layer. The
server averages each number over the participants whose parts contain it, with equal weights.
"""

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Field, Payload, Recipient, Shapes, Task, Uploads

HEADER = ("header.weight", "header.bias")


def trained_spec(_: api.Method, shapes: Shapes) -> api.Spec:
    """Return the spec of the weights of a client's network, with the header's rows of classes."""
    spec = api.update_spec(api.network_weights(shapes.network()))
    rows = {name: Field(spec[name].dtype, spec[name].shape[1:]) for name in HEADER}
    return {**spec, **api.for_each_class(shapes.task, **rows)}


class HeteroFL(api.Method):
    """A participant, new or not, starts each round from its part of the whole network."""

    family, about = "sub-networks", "Clients train parts of one network, which are averaged."
    up = api.Own(trained_spec, own_network=True, about="network, header rows of own classes")
    down = api.Network("own", statistics=False)

    shared: api.NetworkName = "cnn1"  # the extractor of the whole network
    scale: bool = True  # a layer with the share r of the units divides its output by r
    mask: bool = True  # logits of classes that a client does not have are 0

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        whole = api.shared_model(self.shared, task)
        api.check_cuts(whole, models, task)
        return api.network_weights(whole)

    def init_client(self, client: Client) -> None:
        held = client.data.train.labels.bincount(minlength=client.task.num_classes) > 0
        client.memory["absent"] = ~held & self.mask

    def shift(self, server: Payload) -> int:
        return 0  # the first unit of the parts

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        whole = {name: tuple(server[name].shape) for name in to.sizes if name in server}
        return api.take(server, api.cut(whole, {n: to.sizes[n] for n in whole}, self.shift(server)))

    def client_update(self, client: Client, down: Payload) -> Payload:
        model, absent = client.model, client.memory["absent"]
        whole = api.shared_sizes(self.shared, client.task)
        api.load_network(model, api.network_state(model) | down)
        rates = api.layer_rates(whole, api.sizes_of(down)) if self.scale else {}
        with api.scaled(model, rates):
            api.train(client, lambda x, y: cross_entropy(model(x).masked_fill(absent, 0), y))
        up, own = api.network_weights(model), (~absent).nonzero().flatten()
        api.fold_scaler(model, rates)  # the client predicts with the function that it has trained
        api.measure_batch_statistics(client)
        return up | {name: up[name][own] for name in HEADER} | {"classes": own.int()}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        mean, sizes = None, api.shared_sizes(self.shared, uploads.task)  # in order of the layers
        whole = {name: size for name, size in sizes.items() if name in server}
        for upload in uploads:
            sent = {name: upload.payload[name] for name in whole}
            own, header = upload.payload["classes"].long(), {name: whole[name] for name in HEADER}
            part = api.cut(whole, {**api.sizes_of(sent), **header}, self.shift(server))
            mean = mean or api.CoordinateMean(whole)
            mean.add(sent, part | {n: (own, *part[n][1:]) for n in HEADER}, 1)
        return server if mean is None else mean.value(self.sendable(server))

    def logits(self, client: Client, x: Tensor) -> Tensor:
        return super().logits(client, x).masked_fill(client.memory["absent"], 0)

    def global_logits(self, client: Client, x: Tensor) -> Tensor:
        return super().logits(client, x)
