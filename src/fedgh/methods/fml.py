"""FML, federated mutual learning (Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu and Wu, 2020).

Every client has a private model of its own and a copy of a small shared one ("meme"); the two
teach each other on the local data. The server averages the shared ones with weights n_k / n,
running statistics of batch normalisation included. Clients are judged by their private model.
"""

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Fraction, Payload, Uploads, distill


class FML(api.Method):
    """A participant, new or not, starts its round with the global shared model."""

    family = "small shared network"
    about = "A private and a small shared network teach each other; the small one is averaged."
    up = down = api.Network("shared")
    weighs_by_examples = True

    alpha: Fraction = 0.5  # share of the labels for the private model
    beta: Fraction = 0.5  # and for the shared one
    shared: api.NetworkName = "cnn5"  # the extractor of the shared model

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
        """Both learn from the labels and from the other's output, which is a constant for it."""
        a, b = self.alpha, self.beta
        of_private = a * cross_entropy(private, y) + (1 - a) * distill(shared, private)
        of_shared = b * cross_entropy(shared, y) + (1 - b) * distill(private, shared)
        return of_private + of_shared

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)
