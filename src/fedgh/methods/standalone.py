"""Standalone: every client trains alone, without any exchange. A federation should beat it."""

from torch import Tensor

from fedgh.core import ensemble
from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Uploads


class Standalone(api.Method):
    """Two controls: a header reset like that of FedGH, and a second network like other methods."""

    family, about = "training alone", "Nothing is exchanged: the baseline."
    up = down = api.NOTHING

    reset_header: bool = False  # replace the header by a random one every round
    networks: ensemble.Size = 1  # networks of a client; the mean of their logits predicts

    def init_client(self, client: Client) -> None:
        ensemble.add_networks(client, self.networks)

    def client_update(self, client: Client, down: Payload) -> Payload:
        ensemble.train_each(client, self.reset_header)
        return {}

    def logits(self, client: Client, x: Tensor) -> Tensor:
        return ensemble.mean_logits(client, x)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return server
