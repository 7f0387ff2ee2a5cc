"""What FedGH costs beside local training: the claims of the paper's section 3.3, measured.

Clients: representations of all samples once a round, "half the computation cost of local training
(forward and backwards) in one epoch". Server: steps on a linear header, negligible. Uplink:
(S + S r) 32 bits for S classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgh.core.records import ClientInfo, Round
from fedgh.core.types import Task
from fedgh.models import extractor
from fedgh.models.cost import forward_flops, training_flops


@dataclass(frozen=True)
class Cost:
    """Sums over all rounds of a run, and shares of them."""

    extraction_share: float  # of the clients' seconds: training and extraction, no evaluation
    extraction_epochs: float  # seconds of extraction over those of one epoch of training
    extraction_epochs_counted: float  # the same in multiplications, which no clock disturbs
    server_share: float  # of the seconds that the rounds took
    server_work_share: float  # of all seconds worked: on clients (not evaluating) and server
    server_seconds_per_pair: float  # reading, checking and learning one class mean
    pairs: int  # that the server has received
    bytes_up: int
    bytes_up_formula: int  # 4 (S + S r) for each upload


def measure(
    records: Sequence[Round], clients: Sequence[ClientInfo], task: Task, epochs: int
) -> Cost:
    """The cost of a FedGH run with `epochs` local epochs, from its folder.

    A backward pass is worth two forward ones (gradients of the activations and of the weights;
    the first layer needs only the latter), so extraction is counted as a little more than a third
    of an epoch rather than the paper's half. Every class of a client is taken to be among its
    training samples, as it is in the paper's settings.
    """
    seconds = {
        phase: sum(record.seconds[phase] for record in records)
        for phase in ("train", "summarise", "server", "total")
    }
    work = seconds["train"] + seconds["summarise"]
    uploaded = [clients[client] for record in records for client in record.answered]
    pairs = sum(len(client.classes) for client in uploaded)
    return Cost(
        extraction_share=seconds["summarise"] / work,
        extraction_epochs=seconds["summarise"] / (seconds["train"] / epochs),
        extraction_epochs_counted=_counted(uploaded, task),
        server_share=seconds["server"] / seconds["total"],
        server_work_share=seconds["server"] / (work + seconds["server"]),
        server_seconds_per_pair=seconds["server"] / pairs,
        pairs=pairs,
        bytes_up=sum(record.bytes_up for record in records),
        bytes_up_formula=4 * pairs * (1 + task.rep_dim),
    )


def _counted(uploaded: Sequence[ClientInfo], task: Task) -> float:
    """Operations of one forward pass over everybody's samples, over those of one epoch."""
    networks = {name: extractor(name) for name in {client.extractor for client in uploaded}}
    forward = {name: forward_flops(make, task) for name, make in networks.items()}
    training = {name: training_flops(make, task) for name, make in networks.items()}
    passed: int = sum(client.train * forward[client.extractor] for client in uploaded)
    trained: int = sum(client.train * training[client.extractor] for client in uploaded)
    return passed / trained
