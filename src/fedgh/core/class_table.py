"""Tables with one row per class: the server state and the messages of class-mean methods."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedgh.core.types import Client, Payload, Upload


def empty(num_classes: int, width: int) -> Payload:
    """Return a table without a filled row."""
    return {
        "means": torch.zeros(num_classes, width),
        "filled": torch.zeros(num_classes, dtype=torch.bool),
    }


def select(table: Payload, classes: Tensor | None) -> Payload:
    """Return a message with the filled rows of the classes in a mask, or of all if it is None."""
    filled = table["filled"] if classes is None else table["filled"] & classes
    labels = filled.nonzero().flatten()
    return {"classes": labels.int(), "means": table["means"][labels]}


def by_label(message: Payload, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a message as a table [classes, width], and the mask of filled rows."""
    labels, rows = message["classes"].long(), message["means"]
    table = rows.new_zeros(num_classes, rows.shape[1])
    filled = rows.new_zeros(num_classes, dtype=torch.bool)
    table[labels] = rows
    filled[labels] = True
    return table, filled


def nearest(message: Payload, client: Client, x: Tensor) -> Tensor:
    """Return logits that are highest for the class whose row is nearest to the representation.

    Logits are negative squared distances; a class without a row gets the lowest logit.
    """
    table, filled = by_label(message, client.task.num_classes)
    distances = torch.cdist(client.model.represent(x), table).square()
    return -distances.where(filled, distances[:, filled].amax(dim=1, keepdim=True) + 1)


def update(table: Payload, uploads: Iterable[Upload]) -> Payload:
    """Return the table with the row of each uploaded class replaced by its count-weighted mean."""
    payloads = [upload.payload for upload in uploads]
    if not payloads:
        return table
    new = weighted_means(payloads, len(table["filled"]))
    means, filled = table["means"].clone(), table["filled"].clone()
    labels = new["classes"].long()
    means[labels] = new["means"]
    filled[labels] = True
    return {"means": means, "filled": filled}


def weighted_means(uploads: Sequence[Payload], num_classes: int) -> Payload:
    """Return the mean of each class over all samples, from the clients' means and counts."""
    classes = torch.cat([upload["classes"] for upload in uploads])
    counts = torch.cat([upload["counts"] for upload in uploads]).double()[:, None]
    means = torch.cat([upload["means"] for upload in uploads])
    weighted, holders = sums(classes, means * counts, num_classes)
    weights, _ = sums(classes, counts, num_classes)
    seen = holders.nonzero().flatten()
    return {"classes": seen.int(), "means": (weighted[seen] / weights[seen]).float()}


def sums(classes: Tensor, rows: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the rows of each class, in double precision, and their number."""
    total = torch.zeros(num_classes, rows.shape[1], dtype=torch.float64)
    total.index_add_(0, classes.long(), rows.double())
    return total, classes.long().bincount(minlength=num_classes)


def nearest_distributions(rows: Tensor) -> Tensor:
    """Return the nearest probability distribution (Euclidean) to each row.

    It is max(row - t, 0), with t such that the result sums to one (Held, Wolfe and Crowder 1974).
    """
    ordered = rows.double().sort(dim=1, descending=True).values
    ranks = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    excess = (ordered.cumsum(dim=1) - 1) / ranks
    kept = (ordered > excess).sum(dim=1, keepdim=True)
    return (rows.double() - excess.gather(1, kept - 1)).clamp(min=0).float()
