"""Quantised outputs (soft labels) for public samples, sent whole or as changes since the last time.

With one bit per class, a row is the number of the predicted class. With two to eight, it has a
whole number for each class, and these add up to 2^bits - 1. With 32, it has the probabilities.

Changes refer to the last upload of a client that the server accepted. An upload may be lost or
rejected, so the server tells a client the round of the upload that it has: 0 if it has none.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedgh.core import wire
from fedgh.core.average import WeightedMean
from fedgh.core.message import Message, PublicOutputs, QuantisedOutputs
from fedgh.core.types import Client, Payload, moved
from fedgh.core.uploads import Uploads

FLOAT = 32
"""Bits of a number that is not quantised."""


def message(bits: int) -> Message:
    """Return the declaration of what `pack` returns."""
    return PublicOutputs("probabilities") if bits == FLOAT else QuantisedOutputs(bits)


def pack(probabilities: Tensor, bits: int) -> Payload:
    """Return probabilities [rows, classes] as a payload."""
    if bits == FLOAT:
        return {"probabilities": probabilities}
    return {"labels": quantise(probabilities, bits)}


def unpack(payload: Payload, num_classes: int, bits: int) -> Tensor | None:
    """Return the probabilities [rows, classes] of all rows in a payload; None if it has none."""
    if bits == FLOAT or "labels" not in payload:
        return payload.get("probabilities")
    return _probabilities(payload["labels"], num_classes, bits)


def quantise(probabilities: Tensor, bits: int) -> Tensor:
    """Return the quantised outputs that are nearest in l1; of several, those of the first class."""
    exact = _largest(bits) * probabilities.cpu().double()
    missing = _largest(bits) - exact.floor().sum(1, keepdim=True)
    ranks = exact.frac().argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    levels = (exact.floor() + (ranks < missing)).to(torch.uint8)
    return levels.argmax(1).to(torch.uint8) if bits == 1 else levels


def upload(client: Client, probabilities: Tensor, bits: int, known: Tensor) -> Payload:
    """Return quantised outputs: all, or those that changed since round `known` if that is smaller.

    The client keeps them in its memory. The metric `delta_bits` is the entropy of the difference in
    bits per number. An entropy coder could send it in that size; nothing does so here.
    """
    labels = quantise(probabilities, bits)
    same = torch.zeros_like(labels, dtype=torch.bool)
    if int(client.memory.get("round", -1)) == int(known):
        same = labels == client.memory["labels"].cpu()
    client.metrics["delta_bits"] = entropy((labels.int() + 1).masked_fill(same, 0))
    last = {"labels": labels, "round": torch.tensor([client.round], dtype=torch.int32)}
    client.memory = moved(last, client.device)
    where = (~same).reshape(len(labels), -1).any(1).nonzero().flatten()
    changes = {"where": where.int(), "labels": labels[where]}
    return min({"labels": labels}, changes, key=wire.nbytes)


def collect(server: Payload, uploads: Uploads, bits: int) -> tuple[Payload, Tensor | None]:
    """Return the state with the clients' quantised outputs, and the mean output of these clients.

    The mean is None without uploads. Changes of an upload that the server does not have are
    ignored: an honest client does not send them.
    """
    mean, classes = WeightedMean(), uploads.task.num_classes
    for each in uploads:
        prefix, labels = f"client{each.client_id}.", each.payload["labels"]
        if "where" in each.payload:
            if prefix + "labels" not in server:
                continue
            where = each.payload["where"].long()
            labels = server[prefix + "labels"].index_copy(0, where, labels)
        now = torch.tensor([uploads.round], dtype=torch.int32)
        server = server | {prefix + "labels": labels, prefix + "round": now}
        mean.add({"mean": _probabilities(labels, classes, bits)}, 1)
    return server, mean.value(if_none={}).get("mean")


def entropy(symbols: Tensor) -> float:
    """Return the entropy of the symbols' frequencies, in bits per symbol."""
    shares = symbols.unique(return_counts=True)[1] / symbols.numel()
    return float(-(shares * shares.log2()).sum())


def known(server: Payload, client_id: int) -> Tensor:
    """Return the round of the upload that the server has of a client; 0 if it has none."""
    return server.get(f"client{client_id}.round", torch.zeros(1, dtype=torch.int32))


def _largest(bits: int) -> int:
    return (1 << bits) - 1


def _probabilities(labels: Tensor, num_classes: int, bits: int) -> Tensor:
    levels = one_hot(labels.long(), num_classes) if bits == 1 else labels
    return levels / _largest(bits)
