"""What FedGH, FD and FedProto have in common: vectors of classes, and who has which classes."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.types import Payload, Task, Upload


def as_table(classes: Tensor, rows: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Rows at the places of their classes, [num_classes, width], and which places are filled."""
    table = rows.new_zeros(num_classes, rows.shape[1])
    filled = rows.new_zeros(num_classes, dtype=torch.bool)
    table[classes.long()] = rows
    filled[classes.long()] = True
    return table, filled


def class_sums(classes: Tensor, rows: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """For each class the sum of its rows, in double precision, and how many they are."""
    sums = torch.zeros(num_classes, rows.shape[1], dtype=torch.float64)
    sums.index_add_(0, classes.long(), rows.double())
    return sums, classes.long().bincount(minlength=num_classes)


def mean_of_means(uploads: Sequence[Payload], num_classes: int) -> Payload:
    """Return the mean of each class over all samples, from the means and counts of clients."""
    classes = torch.cat([upload["classes"] for upload in uploads])
    counts = torch.cat([upload["counts"] for upload in uploads]).double()[:, None]
    means = torch.cat([upload["means"] for upload in uploads])
    weighted, holders = class_sums(classes, means * counts, num_classes)
    weights, _ = class_sums(classes, counts, num_classes)
    seen = holders.nonzero().flatten()
    return {"classes": seen.int(), "means": (weighted[seen] / weights[seen]).float()}


def remember_classes(known: Tensor, uploads: Sequence[Upload]) -> Tensor:
    """Note which classes each client has shown to have, [clients, classes]."""
    known = known.clone()
    for upload in uploads:
        known[upload.client_id, upload.payload["classes"].long()] = True
    return known


def classes_to_answer(known: Tensor, client_id: int, available: Tensor) -> Tensor:
    """The available classes that concern a client: its own, or all while those are not known."""
    own = known[client_id]
    return (available & own if own.any() else available).nonzero().flatten()


def for_each_class(task: Task, **fields: wire.Field) -> wire.Spec:
    """A message with the labels of some classes, and for each of them what `fields` declare."""
    some = wire.Dim("classes", task.num_classes)
    return {
        "classes": wire.Field(torch.int32, (some,), classes=task.num_classes),
        **{name: replace(each, shape=(some, *each.shape)) for name, each in fields.items()},
    }


def answer(classes: Tensor, rows: Tensor) -> Payload:
    """A message with one row for each of these classes."""
    return {"classes": classes.int(), "rows": rows.float()}


def nearest_distributions(rows: Tensor) -> Tensor:
    """For each row the probability distribution that is nearest to it.

    That is max(row - t, 0) with the t that makes it sum to one (Held, Wolfe and Crowder 1974).
    """
    ordered = rows.double().sort(dim=1, descending=True).values
    places = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    excess = (ordered.cumsum(dim=1) - 1) / places
    kept = (ordered > excess).sum(dim=1, keepdim=True)
    return (rows.double() - excess.gather(1, kept - 1)).clamp(min=0).float()
