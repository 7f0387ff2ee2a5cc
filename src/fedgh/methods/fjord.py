"""FjORD, ordered dropout (Horváth, Laskaridis, Almeida, Leontiadis and others, NeurIPS 2021).

In each step a client draws a width and trains the first units of its network up to that width; its
whole network teaches them. The server averages each number over those who have it, by samples.
"""

from dataclasses import field

from torch import Generator, Tensor, randint, tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Nested, Payload, Recipient, Shapes, Task, Uploads


def message(method: api.Method, shapes: Shapes) -> api.Spec:
    """Return the spec of a network's weights, and of the running statistics of its widths."""
    assert isinstance(method, FjORD)
    return api.network_spec(Nested(method.widths, shapes.network(), shapes.task).state())


class FjORD(api.Method):
    """A participant, new or not, starts each round from its part of the widest network."""

    family = "sub-networks"
    about = "Clients train parts of one network at random widths, which are averaged."
    up = down = api.Own(message, own_network=True, about="network, statistics of each width")
    weighs_by_examples = True

    widths: api.NetworkNames = field(
        default_factory=lambda: ["cnn1@1/5", "cnn1@2/5", "cnn1@3/5", "cnn1@4/5", "cnn1"]
    )  # the clients' networks; each is a part of the next
    distill: bool = True  # a client's whole network teaches the drawn part

    def init_server(self, task: Task, models: api.Models, rng: Generator) -> Payload:
        api.check_nested(self.widths, task)
        counts = [len(Nested(self.widths, model, task).networks) for model in models]
        groups = dict(zip(api.group_numbers(models), counts, strict=True))
        widest = api.shared_model(self.widths[-1], task)
        state = Nested(self.widths, widest, task).state()
        return {**state, "widths": tensor([groups[number] for number in sorted(groups)])}

    def sendable(self, server: Payload) -> Payload:
        return {name: value for name, value in server.items() if name != "widths"}

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        prefixes = tuple(f"width{k}." for k in range(int(server["widths"][to.group])))
        statistics = {name: value for name, value in server.items() if name.startswith(prefixes)}
        whole = {name: server[name] for name in to.sizes if name in server}
        cut = api.cut(api.sizes_of(whole), {name: to.sizes[name] for name in whole})
        return {**api.take(whole, cut), **statistics}

    def client_update(self, client: Client, down: Payload) -> Payload:
        network, rng = Nested(self.widths, client.model, client.task), client.stream("width")
        widest = len(network.networks) - 1
        network.load(down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            drawn = int(randint(widest + 1, (), generator=rng))
            if not self.distill:
                return cross_entropy(network(drawn, x), y)
            teacher = network(widest, x)
            student = teacher if drawn == widest else network(drawn, x)
            return cross_entropy(teacher, y) + cross_entropy(student, teacher.detach().softmax(1))

        api.train(client, loss, network.networks)
        return network.state()

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        known = self.sendable(server)
        mean = api.CoordinateMean(api.sizes_of(known))
        weights = [n for n in api.shared_sizes(self.widths[-1], uploads.task) if n in known]
        order = [*weights, *(name for name in known if name not in weights)]
        for upload in uploads:
            whole = {n: tuple(known[n].shape) for n in order if n in upload.payload}
            part = api.cut(whole, api.sizes_of(upload.payload))
            mean.add(upload.payload, part, upload.num_examples)
        return {**server, **mean.value(known)}
