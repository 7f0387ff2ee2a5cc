"""A client with public samples, and a server's uploads about them, for tests of methods."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fedgh.core.local import unlabelled
from fedgh.core.types import Client, Payload, Task, Upload
from fedgh.core.uploads import Uploads
from tests.support.tiny import a_client

PUBLIC = unlabelled(torch.linspace(-1, 1, 40).view(10, 4))
TASK = Task(
    num_classes=3,
    rep_dim=4,
    num_clients=3,
    rounds=9,
    seed=0,
    input_shape=(4,),
    public_size=10,
)


def public_client(seed: int = 0, **local: Any) -> Client:
    """Return a client of `TASK` in its first round."""
    torch.manual_seed(seed)
    client = a_client(torch.randn(12, 4), torch.arange(12) % 3, **local)
    return replace(client, task=TASK, public_examples=PUBLIC, round=1)


def sent(payloads: Sequence[Payload], task: Task = TASK, round: int = 1) -> Uploads:
    """Return the uploads of clients 0, 1, ... in a round."""
    uploads = [Upload(number, 0, payload) for number, payload in enumerate(payloads)]
    return Uploads(uploads, task, round, public_examples=PUBLIC)
