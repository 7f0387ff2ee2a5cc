"""LG-FedAvg (Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, 2020).

Extractors stay with their clients; the server averages headers with weights n_k / n.
"""

from torch import Generator
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Uploads


class LGFedAvg(api.Method):
    """A participant starts each round with the global header, also in its first round."""

    name = "lg_fedavg"
    family, about = "headers", "The server averages the headers; extractors stay private."
    up = down = api.HEADER
    accepts_newcomers = weighs_by_examples = sums_suffice = True

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.linear_header(task, rng)

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.model.header.load_state_dict(down)
        api.train(client, lambda x, y: cross_entropy(client.model(x), y))
        return api.network_state(client.model.header)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)
