"""FedRolex (Alam, Liu, Yan and Zhang, NeurIPS 2022).

HeteroFL with a rolling window: the parts begin one unit further in every round, and after the last
unit follows the first. So every unit of the whole network is trained by all clients in turn.
"""

import torch

from fedgh.methods import api
from fedgh.methods.api import Payload, Task, Uploads
from fedgh.methods.heterofl import HeteroFL


class FedRolex(HeteroFL):
    """The round counter stays on the server; it counts rounds with uploads."""

    about = "HeteroFL whose parts begin one unit further in every round."

    def init_server(self, task: Task, models: api.Models, rng: torch.Generator) -> Payload:
        clock = torch.zeros(1, dtype=torch.int32)
        return {**super().init_server(task, models, rng), "clock": clock}

    def sendable(self, server: Payload) -> Payload:
        return {name: tensor for name, tensor in server.items() if name != "clock"}

    def shift(self, server: Payload) -> int:
        return int(server["clock"])

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        after = super().server_update(server, uploads)
        return server if after is server else {**after, "clock": server["clock"] + 1}
