"""FedPer (Arivazhagan, Aggarwal, Singh and Choudhary, 2019): personalization layers.

The extractors are averaged with weights n_k / n, the headers never leave their clients. A client
trains both parts together.
"""

from torch import Generator
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Uploads


class FedPer(api.Method):
    """A participant, new or not, starts with the global extractor and its own header."""

    family = "partial networks"
    about = "The server averages the extractors; headers stay private; both train together."
    same_part = "extractor"
    up = down = api.Network("own", "extractor")
    weighs_by_examples = sums_suffice = True

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.network_state(models[0].extractor)

    def client_update(self, client: Client, down: Payload) -> Payload:
        api.load_network(client.model.extractor, down)
        api.train(client, lambda x, y: cross_entropy(client.model(x), y))
        return api.network_state(client.model.extractor)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)
