"""The server's input of a round: the uploads, and what `server_update` may use beside them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from fedgh.core.rng import stream
from fedgh.core.types import CPU, Examples, SplitModel, Task, Upload, declared_public
from fedgh.errors import MethodError


@dataclass
class Uploads(Iterator[Upload]):
    """The accepted uploads of a round: an iterator in client order, which waits for clients."""

    accepted: Iterable[Upload]
    task: Task
    round: int
    device: torch.device = CPU  # device on which the server trains networks
    public_examples: Examples | None = None
    make_network: Callable[[int], SplitModel] | None = None  # by a client's number
    metrics: dict[str, float] = field(
        default_factory=dict
    )  # of the method, for the record of the round

    def __post_init__(self) -> None:
        self._remaining = iter(self.accepted)

    def __iter__(self) -> "Uploads":
        return self

    def __next__(self) -> Upload:
        return next(self._remaining)

    @property
    def public(self) -> Examples:
        """The public data. Raise MethodError for a method that does not declare `public_for`."""
        return declared_public(self.public_examples)

    def stream(self, name: str) -> torch.Generator:
        """Return the random stream `name` of the server in this round."""
        return stream(self.task.seed, f"server/{name}", round=self.round)

    def network(self, client_id: int) -> SplitModel:
        """Return a network of a client's architecture with any weights, on the server's device.

        Raise MethodError if the server does not know the clients' networks.
        """
        if self.make_network is None:
            raise MethodError(
                "the server does not know the clients' networks; set model.extractors"
            )
        return self.make_network(client_id).to(self.device)
