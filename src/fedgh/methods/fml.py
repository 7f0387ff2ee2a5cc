"""FML, federated mutual learning (Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu and Wu, 2020).

Every client has a private network and a copy of a small shared network ("meme"), which learn from
each other on the client's data. The server averages the shared networks with weights n_k / n,
including running statistics of batch normalisation. Clients are evaluated with the private network.
"""

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Fraction, Payload, Uploads, distill


class FML(api.Method):
    """A participant starts each round from the global shared network, also in its first round."""

    family = "small shared network"
    about = "A private and a small shared network teach each other; the small one is averaged."
    up = down = api.Network("shared")
    weighs_by_examples = sums_suffice = True

    alpha: Fraction = 0.5  # weight of the labels for the private network
    beta: Fraction = 0.5  # weight of the labels for the shared network
    shared: api.NetworkName = "cnn5"  # the extractor of the shared network

    def shared_network(self, task: api.Task) -> api.SplitModel:
        return api.shared_model(self.shared, task)

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.network_state(self.shared_network(task))

    def client_update(self, client: Client, down: Payload) -> Payload:
        private, shared = client.model, self.shared_network(client.task).to(client.device)
        api.load_network(shared, down)
        api.train(client, lambda x, y: self.loss(private(x), shared(x), y), [private, shared])
        return api.network_state(shared)

    def loss(self, private: Tensor, shared: Tensor, y: Tensor) -> Tensor:
        """Return the sum of both losses: labels, and the other network's output as a constant."""
        a, b = self.alpha, self.beta
        of_private = a * cross_entropy(private, y) + (1 - a) * distill(shared, private)
        of_shared = b * cross_entropy(shared, y) + (1 - b) * distill(private, shared)
        return of_private + of_shared

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)
