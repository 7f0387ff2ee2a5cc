"""FedAvg (McMahan, Moore, Ramage, Hampson and Agüera y Arcas, AISTATS 2017), Algorithm 1.

Participants train the global model on their data; the server averages the results with weights
n_k / n. All clients need one architecture. Running statistics of batch normalisation are averaged
too.
"""

from torch import Generator
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Uploads


class FedAvg(api.Method):
    """A participant starts each round from the global model, also in its first round."""

    family, about = "whole networks", "The server averages the clients' networks."
    same_part = "network"
    up = down = api.Network("own")
    weighs_by_examples = sums_suffice = True

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.network_state(models[0])

    def client_update(self, client: Client, down: Payload) -> Payload:
        api.load_network(client.model, down)
        api.train(client, lambda x, y: cross_entropy(client.model(x), y))
        return api.network_state(client.model)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)
