"""FedBABU (Oh, Kim and Yun, ICLR 2022): body aggregation, body update.

All clients have the same random header, which the federation never trains: clients train the
extractors, and the server averages them, all with the same weight. Once its upload is made, a
client fine-tunes its network for its own use.
"""

from typing import Annotated, Literal

from pydantic import Field
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Uploads


class FedBABU(api.Method):
    """A participant, new or not, starts with the global extractor and the common header.

    The tuned network is what is evaluated; it never leaves the client, and the next participation
    overwrites it.
    """

    family = "partial networks"
    about = "Extractors train under one fixed random header; clients tune after the upload."
    same_part = "extractor"
    up = down = api.Network("own", "extractor")
    sums_suffice = True

    tune: Literal["all", "header"] = "all"  # the part that a client fine-tunes after its upload
    tune_epochs: Annotated[int, Field(ge=0)] = 5  # 0: evaluate without fine-tuning
    tune_lr: api.Positive = 0.001  # learning rate of fine-tuning

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.network_state(models[0].extractor)

    def client_update(self, client: Client, down: Payload) -> Payload:
        model, task = client.model, client.task
        api.load_network(model.extractor, down)
        model.header.load_state_dict(api.linear_header(task, task.stream("fedbabu-header")))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        api.train(client, loss, [model.extractor])
        upload = api.network_state(model.extractor)
        tuned = [model] if self.tune == "all" else [model.header]
        api.train(
            client,
            loss,
            tuned,
            epochs=self.tune_epochs,
            lr=self.tune_lr,
            stream="tune",
            metric="tune_loss",
        )
        return upload

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.plain_mean(uploads, if_none=server)
