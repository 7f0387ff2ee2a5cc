"""The server's side of a round: the uploads, and all that the server may use to learn from them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from fedgh.core.rng import stream
from fedgh.core.types import CPU, Examples, SplitModel, Task, Upload, declared_public
from fedgh.errors import MethodError


@dataclass
class Uploads(Iterator[Upload]):
    """The accepted uploads of a round in client order, as they come, and the round they are of."""

    accepted: Iterable[Upload]
    task: Task
    round: int
    device: torch.device = CPU  # where the server trains networks
    public_examples: Examples | None = None
    make_network: Callable[[int], SplitModel] | None = None  # one of a client's architecture
    metrics: dict[str, float] = field(default_factory=dict)  # for the record of the round

    def __post_init__(self) -> None:
        self._rest = iter(self.accepted)

    def __iter__(self) -> "Uploads":
        return self

    def __next__(self) -> Upload:
        return next(self._rest)

    @property
    def public(self) -> Examples:
        """The public data. Raises MethodError for a method that does not declare `public_for`."""
        return declared_public(self.public_examples)

    def stream(self, name: str) -> torch.Generator:
        """Return the random stream `name` of the server in this round."""
        return stream(self.task.seed, f"server/{name}", round=self.round)

    def network(self, client_id: int) -> SplitModel:
        """Return a network like a client's, on the server's device, with arbitrary weights.

        Raises MethodError where the clients' networks are secret.
        """
        if self.make_network is None:
            raise MethodError("the clients' networks are not known here")
        return self.make_network(client_id).to(self.device)
