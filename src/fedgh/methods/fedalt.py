"""FedAlt (Pillutla, Malik, Mohamed, Rabbat, Sanjabi and Xiao, ICML 2022).

One part of the network is personal, the other is shared. A client first trains the personal part
with the received shared part fixed, then the shared part with the new personal part fixed. The
server averages the shared parts with weights n_k / n.
"""

from typing import Literal

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Message, Payload, SamePart, Uploads


class FedAlt(api.Method):
    """A participant, new or not, starts with the global shared part and its own personal part."""

    family = "partial networks"
    about = "Extractor or header is personal and trains first; the other part is averaged."
    weighs_by_examples = sums_suffice = True

    personal: Literal["extractor", "header"] = "extractor"  # the part that never leaves a client

    @property
    def up(self) -> Message:  # type: ignore[override]
        """The part that is not personal."""
        return api.HEADER if self.personal == "extractor" else api.Network("own", "extractor")

    @property
    def down(self) -> Message:  # type: ignore[override]
        """The mean of the uploads."""
        return self.up

    @property
    def same_part(self) -> SamePart:  # type: ignore[override]
        """The extractor, if the server averages it."""
        return "none" if self.personal == "extractor" else "extractor"

    @property
    def accepts_newcomers(self) -> bool:  # type: ignore[override]
        """True if the server has a header."""
        return self.personal == "extractor"

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        if self.personal == "extractor":
            return api.linear_header(task, rng)
        return api.network_state(models[0].extractor)

    def client_update(self, client: Client, down: Payload) -> Payload:
        model = client.model
        personal, shared = model.extractor, model.header
        if self.personal == "header":
            personal, shared = shared, personal
        api.load_network(shared, down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        api.train(client, loss, [personal], stream="personal", metric="personal_loss")
        api.train(client, loss, [shared])
        return api.network_state(shared)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return api.mean_by_examples(uploads, if_none=server)
