"""Inputs of a method in a round, made by hand."""

from collections.abc import Iterable

import torch

from fedgh.core.message import Shapes
from fedgh.core.types import Recipient, SplitModel, Task, Upload
from fedgh.core.uploads import Uploads

TASK = Task(num_classes=4, rep_dim=3, num_clients=5, rounds=10, seed=0)


def uploads_of(sent: Iterable[Upload], task: Task = TASK, round: int = 1) -> Uploads:
    """Return uploads of a round whose server has no networks and no public data."""
    return Uploads(sent, task, round)


def shapes_of(task: Task, model: SplitModel | None = None) -> Shapes:
    """Return the shapes of a client, with its network or without."""

    def network() -> SplitModel:
        assert model is not None, "a message that does not depend on the network"
        return model

    return Shapes(task, network)


def recipient(client: int, classes: Iterable[int] | None = None, last_round: int = 0) -> Recipient:
    """Return a recipient that has sent these classes of the task above."""
    if classes is None:
        return Recipient(client, last_round=last_round)
    mask = torch.zeros(TASK.num_classes, dtype=torch.bool)
    mask[list(classes)] = True
    return Recipient(client, mask, last_round)
