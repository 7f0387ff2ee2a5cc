"""CFD, compressed federated distillation (Sattler, Marban, Rischke and Samek, IEEE TNSE 2021).

Clients send quantised outputs for all public samples, or only those that changed since their last
upload. A network of the server learns their mean. Clients begin anew, and learn its outputs.
"""

from typing import Annotated, Literal

from pydantic import Field
from torch import Generator, Tensor, int32
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Message, Payload, Uploads, part, prefixed, soft_labels
from fedgh.methods.public_consensus import digest, revisit

KNOWN = api.Own(lambda *_: {"known": api.Field(int32, (1,), at_least=0)}, about="a round number")


class CFD(api.Method):
    """A participant, new or not, gets the server's last outputs; there are none in round 1."""

    family, public_for = "public data on clients", "all"
    about = "Quantised outputs for public samples, sent as changes; a server network learns them."

    bits: Annotated[int, Field(ge=1, le=8)] = 1  # per class in an upload; 1: the predicted class
    down_bits: Literal[1, 32] = 1  # per class in a download; 1: the predicted class
    restart: bool = True  # begin each round with common random weights (paper), not with its own
    learn_from: Literal["all", "own"] = "all"  # "own", a control: no other client's outputs
    digest_epochs: api.Count = 1  # passes over the public samples
    digest_batch: api.Several = 64  # public samples in a step of a client
    digest_lr: api.Positive = 0.1  # with `local.momentum` 0.9 take 0.01; the paper's Adam: 0.001
    shared: api.NetworkName = "cnn1"  # the extractor of the server's network
    server_steps: Annotated[int, Field(ge=0)] = 100  # of its Adam; 0: no network, the mean is sent
    server_batch: api.Several = 64  # public samples in a step of the server
    server_lr: api.Positive = 0.001  # of Adam

    @property
    def up(self) -> Message:  # type: ignore[override]
        """Outputs for all public samples, or those that changed."""
        return api.QuantisedOutputs(self.bits, changes=True)

    @property
    def down(self) -> Message:  # type: ignore[override]
        """The server's outputs, if it has any, and the round of the client's upload that it has."""
        return api.OneOf(KNOWN, KNOWN + soft_labels.message(self.down_bits))

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        if task.num_classes > 256 and 1 in (self.bits, self.down_bits):
            raise api.ConfigError("cfd with 1 bit sends a class as a byte: 256 classes at most")
        start = api.network_state(api.shared_model(self.shared, task)) if self.server_steps else {}
        return prefixed("network.", start)

    def broadcast(self, server: Payload, to: api.Recipient) -> Payload:
        return {"known": soft_labels.known(server, to.id), **self.sendable(server)}

    def sendable(self, server: Payload) -> Payload:
        return part(server, "sent.")

    def client_update(self, client: Client, down: Payload) -> Payload:
        classes, agreed = client.task.num_classes, down
        if self.learn_from == "own":
            own = soft_labels.unpack(client.memory, classes, self.bits)
            agreed = {} if own is None else soft_labels.pack(own, self.down_bits)
        if self.restart:
            api.restart(client)
        if (targets := soft_labels.unpack(agreed, classes, self.down_bits)) is not None:
            how = self.digest_epochs, self.digest_batch, self.digest_lr
            digest(client, client.public, targets.to(client.device), cross_entropy, *how)
        revisit(client)
        p = api.outputs(client, lambda x: client.model(x).softmax(1), client.public)
        return soft_labels.upload(client, p, self.bits, down["known"])

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        server, p = soft_labels.collect(server, uploads, self.bits)
        if p is None:
            return server
        if self.server_steps:
            server, p = self.taught(server, uploads, p)
        return server | prefixed("sent.", soft_labels.pack(p, self.down_bits))

    def taught(self, server: Payload, uploads: Uploads, p: Tensor) -> tuple[Payload, Tensor]:
        """Return the state after the server's network has learned p, and its outputs."""
        device, batch = uploads.device, self.server_batch
        network, p = api.shared_model(self.shared, uploads.task).to(device), p.to(device)
        api.load_network(network, part(server, "network."))
        loss = api.on_public(uploads, [network], batch, lambda z, row: cross_entropy(z, p[row]))
        steps, lr, old = self.server_steps, self.server_lr, part(server, "adam.")
        adam = api.learn(uploads, [network], loss, steps, lr=lr, moments=old)
        state = prefixed("network.", api.network_state(network)) | prefixed("adam.", adam)
        return server | state, api.network_outputs(network, uploads.public, device).softmax(1)
