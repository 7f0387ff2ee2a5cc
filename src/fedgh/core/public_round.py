"""Rounds of methods whose clients agree on values of public samples, new ones in each round.

A counter in the server's state, `clock`, numbers the draws of public samples (`public_draw`). It
counts rounds that brought uploads and is sent to clients. An upload is about the samples of the
next draw, so the server's next state has a mean and the number of the draw that it is about.
"""

import torch

from fedgh.core.average import plain_mean
from fedgh.core.local import Loss, numbered, train
from fedgh.core.message import Own
from fedgh.core.types import Client, Examples, OptimizerName, Payload
from fedgh.core.uploads import Uploads
from fedgh.core.wire import Field

CLOCK = Own(lambda *_: {"clock": Field(torch.int32, (1,), at_least=0)}, about="a counter")
"""The number of the last draw of public samples; 0 before the first upload."""


def start_clock() -> Payload:
    """Return the server's state before the first round."""
    return _clock(0)


def next_mean(server: Payload, uploads: Uploads) -> Payload:
    """Return the mean of the uploads and the number of their draw; `server` if there are none."""
    mean = plain_mean(uploads, if_none={})
    return {"clock": server["clock"] + 1, **mean} if mean else server


def remember(client: Client, upload: Payload, number: int) -> None:
    """Keep an upload in the client's memory, with the number of the draw that it is about."""
    kept = {**upload, **_clock(number)}
    client.memory.update({name: tensor.to(client.device) for name, tensor in kept.items()})


def train_public(
    client: Client,
    loss: Loss,
    on: Examples,
    *,
    epochs: int,
    batch_size: int | None = None,
    lr: float | None = None,
    optimizer: OptimizerName | None = None,
) -> None:
    """Train the client's model on public samples as they are, without augmentation.

    The loss gets the positions of samples in `on`, not their labels. Other arguments are those of
    `train`.
    """
    train(
        client,
        loss,
        on=numbered(on),
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        optimizer=optimizer,
        augment=(),
        stream="public",
        metric="public_loss",
    )


def _clock(number: int) -> Payload:
    return {"clock": torch.tensor([number], dtype=torch.int32)}
