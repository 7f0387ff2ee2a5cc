"""FedClassAvg (Jang, Ha, Jung and Yoon, ICPP 2022): classifier averaging.

Extractors stay local, headers are averaged with weights n_k / n, as in LG-FedAvg. A client sees
each batch in two augmented views; a supervised contrastive loss brings representations of a class
together, and a proximal term keeps the header near the received one.
"""

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, mse_loss, normalize

from fedgh.methods import api
from fedgh.methods.api import Client, NonNegative, Payload, Positive, Uploads


def contrast(z: Tensor, y: Tensor, temperature: float, base_temperature: float) -> Tensor:
    """Return the supervised contrastive loss of vectors z [n, r] with classes y [n].

    Each vector is an anchor, the others of its class are its positives. Every class needs two
    vectors, which two views guarantee.
    """
    similarity = z @ z.T / temperature
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    others = similarity.masked_fill(itself, -torch.inf)
    log_share = similarity - others.logsumexp(1, keepdim=True)
    positive = (y[:, None] == y) & ~itself
    of_anchor = (positive * log_share).sum(1) / positive.sum(1)
    return -temperature / base_temperature * of_anchor.mean()


class FedClassAvg(api.Method):
    """A participant, new or not, starts with the global header."""

    family = "headers"
    about = "Averaged headers; two views of each batch are contrasted, headers stay near the mean."
    up = down = api.HEADER
    accepts_newcomers = weighs_by_examples = sums_suffice = True

    mu: NonNegative = 0.1  # weight of the distance between the header and the received one
    temperature: Positive = 0.07  # of the contrastive loss; the authors' code has 100
    base_temperature: Positive = 0.07  # the contrastive loss is multiplied by temperature / this
    unit_length: bool = True  # contrast representations of length one; the authors' code: false

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.linear_header(task, rng)

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.model.header.load_state_dict(down)
        api.train(client, lambda x, y: self.loss(client, x, y, down), views=2)
        return api.network_state(client.model.header)

    def loss(self, client: Client, x: Tensor, y: Tensor, received: Payload) -> Tensor:
        """Return the loss of a batch x [2, batch, ...]: only its first view reaches the header."""
        header = client.model.header
        z = client.model.represent(x.flatten(0, 1))
        contrasted = normalize(z) if self.unit_length else z
        temperatures = self.temperature, self.base_temperature
        distance = mse_loss(header.weight, received["weight"])
        distance = distance + mse_loss(header.bias, received["bias"])
        return (
            contrast(contrasted, y.repeat(2), *temperatures)
            + cross_entropy(header(z[: len(y)]), y)
            + self.mu / 2 * distance
        )

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)
