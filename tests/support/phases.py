"""The training phases of one client update, and a client small enough to work one by hand."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from fedgh.core.average import network_state
from fedgh.core.method import Method
from fedgh.core.types import Client, Payload, part
from fedgh.methods import api
from tests.support.tiny import a_client, noisy

ROUGH: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1, "lr": 0.1, "batch_size": 4}
"""Settings with which an optimizer moves weights that have a gradient of zero."""


def one_sample(w: float, header: tuple[float, float], lr: float) -> Client:
    """A client with one sample, x = 1 of class 0, and f(x) = w x; no part has a bias."""
    client = a_client(
        torch.ones(1, 1),
        torch.zeros(1, dtype=torch.int64),
        nn.Linear(1, 1, bias=False),
        rep_dim=1,
        num_classes=2,
        lr=lr,
    )
    weights = client.model
    nn.init.constant_(weights.get_parameter("extractor.weight"), w)
    with torch.no_grad():
        weights.header.weight.copy_(torch.tensor(header)[:, None])
    nn.init.zeros_(weights.header.bias).requires_grad_(False)
    return client


def rough_client(seed: int = 0) -> Client:
    """A client with batch normalisation and dropout, trained with momentum and weight decay."""
    torch.manual_seed(seed)
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    return a_client(x, y, noisy((6,), 4), **ROUGH)


def another_part(client: Client, name: str) -> Payload:
    """The state of that part of another client's network."""
    other = rough_client(seed=client.id + 7)
    return network_state(other.model.get_submodule(name))


@dataclass(frozen=True)
class Phase:
    """One call of `train`: its arguments, and the client's network before and after."""

    arguments: dict[str, Any]
    before: Payload
    after: Payload

    def changed(self) -> set[str]:
        """Return the parts of the network that are not the same to the bit."""
        return {
            name
            for name in ("extractor", "header")
            if any(
                not tensor.equal(part(self.after, f"model.{name}.")[key])
                for key, tensor in part(self.before, f"model.{name}.").items()
            )
        }


def phases_of(
    method: Method, client: Client, down: Payload, monkeypatch: pytest.MonkeyPatch
) -> tuple[Payload, list[Phase]]:
    """Return the upload of a client, and the phases of its training."""
    phases: list[Phase] = []
    train = api.train

    def recorded(client: Client, *words: Any, **arguments: Any) -> int:
        before = client.state()
        steps = train(client, *words, **arguments)
        phases.append(Phase(arguments, before, client.state()))
        return steps

    with monkeypatch.context() as patched:
        patched.setattr(api, "train", recorded)
        return method.client_update(client, down), phases
