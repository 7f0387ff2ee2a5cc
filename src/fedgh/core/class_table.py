"""One row per class: what a server keeps, sends and receives of methods with class means."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedgh.core.types import Client, Payload, Upload


def empty(num_classes: int, width: int) -> Payload:
    """Return a table in which no class has a row yet."""
    return {
        "means": torch.zeros(num_classes, width),
        "filled": torch.zeros(num_classes, dtype=torch.bool),
    }


def select(table: Payload, classes: Tensor | None) -> Payload:
    """Return a message with the filled rows of these classes (a mask); None: with all of them."""
    filled = table["filled"] if classes is None else table["filled"] & classes
    labels = filled.nonzero().flatten()
    return {"classes": labels.int(), "means": table["means"][labels]}


def by_label(message: Payload, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a message at their labels, [classes, width], and which are filled."""
    labels, rows = message["classes"].long(), message["means"]
    table = rows.new_zeros(num_classes, rows.shape[1])
    filled = rows.new_zeros(num_classes, dtype=torch.bool)
    table[labels] = rows
    filled[labels] = True
    return table, filled


def nearest(message: Payload, client: Client, x: Tensor) -> Tensor:
    """Return logits by which an input belongs to the class whose row is nearest to it.

    They are negative squared distances of representations; a class without a row comes last.
    """
    table, filled = by_label(message, client.task.num_classes)
    away = torch.cdist(client.model.represent(x), table).square()
    return -away.where(filled, away[:, filled].amax(dim=1, keepdim=True) + 1)


def update(table: Payload, uploads: Iterable[Upload]) -> Payload:
    """Replace the rows of all classes that were uploaded by their means, weighted by the counts."""
    sent = [upload.payload for upload in uploads]
    if not sent:
        return table
    found = weighted_means(sent, len(table["filled"]))
    means, filled = table["means"].clone(), table["filled"].clone()
    labels = found["classes"].long()
    means[labels] = found["means"]
    filled[labels] = True
    return {"means": means, "filled": filled}


def weighted_means(uploads: Sequence[Payload], num_classes: int) -> Payload:
    """Return the mean of each class over all samples, from the means and counts of clients."""
    classes = torch.cat([upload["classes"] for upload in uploads])
    counts = torch.cat([upload["counts"] for upload in uploads]).double()[:, None]
    means = torch.cat([upload["means"] for upload in uploads])
    weighted, holders = sums(classes, means * counts, num_classes)
    weights, _ = sums(classes, counts, num_classes)
    seen = holders.nonzero().flatten()
    return {"classes": seen.int(), "means": (weighted[seen] / weights[seen]).float()}


def sums(classes: Tensor, rows: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum of each class's rows, in double precision, and how many they are."""
    total = torch.zeros(num_classes, rows.shape[1], dtype=torch.float64)
    total.index_add_(0, classes.long(), rows.double())
    return total, classes.long().bincount(minlength=num_classes)


def nearest_distributions(rows: Tensor) -> Tensor:
    """Return for each row the probability distribution that is nearest to it.

    That is max(row - t, 0) with the t that makes it sum to one (Held, Wolfe and Crowder 1974).
    """
    ordered = rows.double().sort(dim=1, descending=True).values
    places = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    excess = (ordered.cumsum(dim=1) - 1) / places
    kept = (ordered > excess).sum(dim=1, keepdim=True)
    return (rows.double() - excess.gather(1, kept - 1)).clamp(min=0).float()
