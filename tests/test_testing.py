"""`check_method` detects methods that break the contract."""

import random

import pytest
import torch
from torch import Tensor, nn

from fedgh.errors import MethodError
from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Recipient, Uploads
from fedgh.methods.lg_fedavg import LGFedAvg
from fedgh.testing import check_method
from tests.support.families import PUBLIC, Consensus, Phases


class ChangesDownload(LGFedAvg):
    def client_update(self, client: Client, down: Payload) -> Payload:
        up = super().client_update(client, down)
        down["bias"].zero_()
        return up


class ChangesServer(LGFedAvg):
    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        for name, tensor in api.mean_by_examples(uploads, if_none=server).items():
            server[name].copy_(tensor)
        return server


class ChangesUploads(LGFedAvg):
    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        kept = [upload.payload for upload in uploads]
        for payload in kept:
            payload["bias"].mul_(2)
        return kept[0] if kept else server


class BroadcastChanges(LGFedAvg):
    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        server["bias"].add_(1)
        return server


class SendsMore(LGFedAvg):
    def client_update(self, client: Client, down: Payload) -> Payload:
        return super().client_update(client, down) | {"id": torch.tensor(client.id)}


class SendsLess(LGFedAvg):
    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        return {"weight": server["weight"]}


class KeepsGradients(LGFedAvg):
    def client_update(self, client: Client, down: Payload) -> Payload:
        return {n: t.requires_grad_() for n, t in super().client_update(client, down).items()}


class NeedsUploads(LGFedAvg):
    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return next(uploads).payload


class Infinite(LGFedAvg):
    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return {name: tensor / 0 for name, tensor in server.items()}


class ShortLogits(LGFedAvg):
    def logits(self, client: Client, x: Tensor) -> Tensor:
        return super().logits(client, x)[:, :3]


class ServerIsRandom(LGFedAvg):
    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return {name: tensor + random.random() for name, tensor in server.items()}


class ClientIsRandom(LGFedAvg):
    def client_update(self, client: Client, down: Payload) -> Payload:
        client.memory = {"number": torch.tensor(random.random())}
        return super().client_update(client, down)


class Forgetful(LGFedAvg):
    """A method that keeps a client's state outside its checkpoint."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        seen = getattr(client, "seen", 0) + 1
        vars(client)["seen"] = seen
        client.memory = {"seen": torch.tensor(seen)}
        return super().client_update(client, down)


class OtherNetwork(LGFedAvg):
    """A method that widens the client's network, so that the server does not know its shapes."""

    up = api.Network("own", "extractor")

    def init_client(self, client: Client) -> None:
        client.model.extractor = nn.Sequential(client.model.extractor, nn.Linear(8, 8))

    def client_update(self, client: Client, down: Payload) -> Payload:
        super().client_update(client, down)
        return api.network_state(client.model.extractor)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return server


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (ChangesDownload, "client_update changed its download"),
        (ChangesServer, "server_update changed the server's previous state"),
        (ChangesUploads, "server_update changed an upload"),
        (BroadcastChanges, "broadcast changed the server's state"),
        (SendsMore, r"the upload is not as declared: expected tensors \['bias', 'weight'\]"),
        (SendsLess, "the download is not as declared"),
        (KeepsGradients, "in the upload is not a CPU tensor without gradients"),
        (Infinite, "is not finite"),
        (ShortLogits, r"logits have shape \(\d+, 3\), not \(\d+, 10\)"),
        (ServerIsRandom, "the server ends in another state when clients run in another order"),
        (ClientIsRandom, "client 0 ends in another state when clients run in another order"),
        (Forgetful, "client 1 ends in another state when clients run in another order"),
        (OtherNetwork, "the server expects other uploads than the client declares"),
    ],
)
def test_a_broken_contract_is_detected(method: type[LGFedAvg], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_method(method())


def test_a_method_that_needs_uploads_in_each_round_fails() -> None:
    with pytest.raises(StopIteration):
        check_method(NeedsUploads())


def test_settings_change_the_tiny_federation() -> None:
    with pytest.raises(MethodError, match="phases needs the same extractor at all clients"):
        check_method(Phases())
    check_method(Phases(), ["model.extractors=mlp"])
    check_method(Consensus(), PUBLIC)
