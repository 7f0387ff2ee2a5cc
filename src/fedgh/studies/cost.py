"""The cost of FedGH beside local training, measured: claims of section 3.3 of the FedGH paper.

Clients compute the representations of all samples once a round, "half the computation cost of local
training (forward and backwards) in one epoch". The server trains a linear header, at negligible
cost. A client with S classes uploads (S + S r) numbers of 32 bits, where r is the length of a
representation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgh.core.records import ClientInfo, Round
from fedgh.core.types import Task
from fedgh.models import extractor
from fedgh.models.cost import forward_flops, training_flops


@dataclass(frozen=True)
class Cost:
    """The cost of a run, over all rounds."""

    extraction_share: float  # time of extraction / time of training and extraction
    extraction_epochs: float  # time of extraction / time of one epoch of training
    extraction_epochs_counted: float  # operations of extraction / operations of one epoch
    server_share: float  # time of the server / duration of the rounds
    server_work_share: float  # time of the server / time of server, training and extraction
    server_seconds_per_pair: float  # to read, check and learn one class mean
    pairs: int  # number of class means that the server has received
    bytes_up: int
    bytes_up_formula: int  # 4 (S + S r) for each upload


def measure(
    records: Sequence[Round], clients: Sequence[ClientInfo], task: Task, epochs: int
) -> Cost:
    """Return the cost of a FedGH run with `epochs` local epochs, from its records.

    A backward pass costs as much as two forward passes, for the gradients of activations and of
    weights; the first layer needs only those of weights. So extraction counts as slightly more than
    a third of an epoch, not the paper's half. Each class of a client is assumed to have training
    samples, as in the paper's settings.
    """
    seconds = {
        phase: sum(record.seconds[phase] for record in records)
        for phase in ("train", "summarise", "server", "total")
    }
    client_seconds = seconds["train"] + seconds["summarise"]
    uploaded = [clients[client] for record in records for client in record.answered]
    pairs = sum(len(client.classes) for client in uploaded)
    return Cost(
        extraction_share=seconds["summarise"] / client_seconds,
        extraction_epochs=seconds["summarise"] / (seconds["train"] / epochs),
        extraction_epochs_counted=_counted(uploaded, task),
        server_share=seconds["server"] / seconds["total"],
        server_work_share=seconds["server"] / (client_seconds + seconds["server"]),
        server_seconds_per_pair=seconds["server"] / pairs,
        pairs=pairs,
        bytes_up=sum(record.bytes_up for record in records),
        bytes_up_formula=4 * pairs * (1 + task.rep_dim),
    )


def _counted(uploaded: Sequence[ClientInfo], task: Task) -> float:
    """Return the operations of a forward pass over all samples, divided by those of an epoch."""
    networks = {name: extractor(name) for name in {client.extractor for client in uploaded}}
    forward = {name: forward_flops(make, task) for name, make in networks.items()}
    training = {name: training_flops(make, task) for name, make in networks.items()}
    extraction: int = sum(client.train * forward[client.extractor] for client in uploaded)
    epoch: int = sum(client.train * training[client.extractor] for client in uploaded)
    return extraction / epoch
