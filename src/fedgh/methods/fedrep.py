"""FedRep (Collins, Hassani, Mokhtari and Shakkottai, ICML 2021), Algorithm 1.

A client first trains its private header with the received extractor fixed, for many epochs, then
the extractor with the new header fixed. The server averages the extractors, all with the same
weight.
"""

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Count, Payload, Uploads


class FedRep(api.Method):
    """A participant, new or not, starts with the global extractor and its own header."""

    family = "partial networks"
    about = "The server averages the extractors; private headers train first, extractors after."
    same_part = "extractor"
    up = down = api.Network("own", "extractor")
    sums_suffice = True

    header_epochs: Count = 10  # of the first phase: the header alone; local.epochs is not used
    extractor_epochs: Count = 1  # of the second phase: the extractor alone

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.network_state(models[0].extractor)

    def client_update(self, client: Client, down: Payload) -> Payload:
        model = client.model
        api.load_network(model.extractor, down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        api.train(
            client,
            loss,
            [model.header],
            epochs=self.header_epochs,
            stream="header",
            metric="header_loss",
        )
        api.train(client, loss, [model.extractor], epochs=self.extractor_epochs)
        return api.network_state(model.extractor)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.plain_mean(uploads, if_none=server)
