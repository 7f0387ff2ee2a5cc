"""Standalone: every client trains alone. The baseline that any federation has to beat."""

from torch import Tensor

from fedgh.core import ensemble
from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Uploads


class Standalone(api.Method):
    """Two controls: FedGH replaces the header, too, and other methods have a second network."""

    family, about = "training alone", "Nothing is exchanged: the baseline."
    up = down = api.NOTHING

    reset_header: bool = False  # to a new random one, every round
    networks: ensemble.Size = 1  # of a client, which predict together

    def init_client(self, client: Client) -> None:
        ensemble.add_networks(client, self.networks)

    def client_update(self, client: Client, down: Payload) -> Payload:
        ensemble.train_each(client, self.reset_header)
        return {}

    def logits(self, client: Client, x: Tensor) -> Tensor:
        return ensemble.mean_logits(client, x)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return server
