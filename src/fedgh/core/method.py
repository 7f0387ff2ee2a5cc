"""What a federated method is: two functions over messages, and what they start from.

A method is a frozen dataclass whose fields are its hyper-parameters. It sees one client at a
time on the one side and a stream of uploads on the other; never a file, a process, a device or
the clock. Nothing it receives is changed in place.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import ConfigDict
from torch import Tensor

from fedgh.core.types import Client, Payload, SplitModel, Task, Upload
from fedgh.core.wire import Spec
from fedgh.errors import MethodError

Sharing = Literal["nothing", "class means", "moments", "more"]


RELEASE = "release."
"""Names in a client's memory of what it sends whenever it is asked, with the noise it was given."""


@dataclass(frozen=True)
class Method(ABC):
    """Base class. `client_update` and `server_update` are the algorithm."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    name: ClassVar[str]
    weighs_by_examples: ClassVar[bool] = False
    """Whether the server learns how many training samples each client has."""
    shares: ClassVar[Sharing] = "more"
    """What uploads tell of a client's data. Only nothing, what one call of `class_means` or
    `class_statistics` gives, and moments (`core.private_moments`) can be bounded by `privacy`."""

    longest: ClassVar[float] = math.inf
    """A length that no vector of `summarised` exceeds, whatever the network and the data."""

    welcomes: ClassVar[bool] = False
    """Whether the server has a header for a client that comes after the last round."""
    releases_once: ClassVar[bool] = False
    """Whether a client tells of its data once, and repeats that when it is asked again."""
    public_for: ClassVar[Literal["none", "server", "all"]] = "none"
    """Who must have public data (`[public]`): the server alone, or all clients as well, which then
    find them in `client.public`. Without such data the method is refused before anything runs."""
    public_labels: ClassVar[bool] = False
    """Whether the method reads the labels of public data; else these are -1."""

    def init_server(
        self, task: Task, models: Sequence[SplitModel], rng: torch.Generator
    ) -> Payload:
        """What the server holds before the first round.

        `models` has one fresh model of each architecture; client k's is models[k % len(models)].
        A method that cannot work with them raises ConfigError here, before anything runs.
        """
        return {}

    def init_client(self, client: Client) -> None:  # noqa: B027
        """Give a new client what it needs beside its model."""

    def broadcast(self, server: Payload, client_id: int) -> Payload:
        """What the server sends to this participant."""
        return server

    def sendable(self, server: Payload) -> Payload:
        """All that `broadcast` may send: what clients would refuse must not come to be there."""
        return self.broadcast(server, 0)

    @abstractmethod
    def client_update(self, client: Client, down: Payload) -> Payload:
        """A participant's round: learn from `down` and the local data, return the upload."""

    @abstractmethod
    def server_update(self, server: Payload, uploads: Iterable[Upload]) -> Payload:
        """The server's round: consume uploads in client order, as they come."""

    @abstractmethod
    def upload_spec(self, task: Task, server: Payload) -> Spec:
        """The tensors an upload has; anything else is rejected."""

    def check_upload(  # noqa: B027
        self, task: Task, payload: Payload, largest_norm: float
    ) -> None:
        """Refuse, by WireError, what is as declared and yet cannot be meant."""

    @abstractmethod
    def download_specs(self, client: Client) -> Sequence[Spec]:
        """What a client may be sent: the tensors of one of these; anything else is refused."""

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """The logits by which the client is judged on its own data."""
        out: Tensor = client.model(x)
        return out

    def predict_global(self, client: Client, x: Tensor) -> Tensor:
        """Logits over all classes, for samples of any client; by default those of `predict`."""
        return self.predict(client, x)

    def summarised(self, client: Client) -> Callable[[Tensor], Tensor] | None:
        """Return what the class means or moments are of: from inputs to a vector for each.

        None: the method sends neither.
        """
        return None

    def will_release(self, client: Client) -> bool:
        """Tell if the client's next update tells of its data anew."""
        return True

    def refresh(self, client: Client, down: Payload) -> Payload:
        """Take over what the server has sent, without training; return what goes back."""
        raise self._cannot_forget()

    def forget(self, server: Payload, client_id: int) -> Payload:
        """Return the server as it would be if the client had never sent anything."""
        raise self._cannot_forget()

    def enlarged(self, server: Payload) -> Payload:
        """Return the server with room for one more client."""
        return server

    def _cannot_forget(self) -> MethodError:
        return MethodError(
            f"{self.name} cannot forget a client: what it sent is mixed with what the others "
            "learned from it; fedgh_plus can"
        )

    def paper_bytes(self, task: Task, local_classes: int) -> int | None:
        """Bytes up and down per client and round as the FedGH paper reckons; None: it does not."""
        return None
