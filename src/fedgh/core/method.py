"""A federated method: declarations of what crosses, and two functions over messages.

The fields of a method are its hyper-parameters. A method sees one client at a time on the one side
and a stream of uploads on the other; never a file, a process or the clock. Nothing it receives is
changed in place. `fedgh.methods.api` has all that the author of a method needs.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from fedgh.core.message import Message, Shapes, Sharing
from fedgh.core.names import Names
from fedgh.core.types import Client, Payload, Recipient, SplitModel, Task
from fedgh.core.uploads import Uploads
from fedgh.core.wire import Spec
from fedgh.errors import MethodError

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
NetworkName = Annotated[str, Names.NETWORK]

PublicFor = Literal["none", "server", "all"]

SamePart = Literal["none", "extractor", "network"]

FAMILIES = (
    "training alone",
    "whole networks",
    "partial networks",
    "headers",
    "class means",
    "statistics",
    "small shared network",
    "data-free distillation",
    "sub-networks",
    "public data on clients",
    "public data on the server",
    "other methods",
)
"""Groups of methods by what they exchange, in the order of lists and tables."""

Models = Sequence[SplitModel]
"""One fresh model of each architecture; that of client k is models[k % len(models)]."""

RELEASE = "release."
"""Names in a client's memory of what it sends whenever it is asked, with the noise it was given."""

DERIVED = ("shares", "upload_specs", "download_specs", "own_network_crosses")
"""Attributes that follow from `up` and `down`, and may not be defined beside them."""

DECLARED = ("name", "up", "down")
"""Class attributes without a default."""

RENAMED = {
    "predict": "logits",
    "predict_global": "global_logits",
    "summarised": "averaged",
    "upload_spec": "up",
    "longest": "up",
    "welcomes": "accepts_newcomers",
}
"""Hooks of earlier versions: a method that still defines one would find it ignored."""


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Method(ABC):
    """Base class. `client_update` and `server_update` are the algorithm.

    A subclass becomes a frozen dataclass by itself.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    name: ClassVar[str]
    """In messages and tables; by default the name of the class in lower case."""
    up: ClassVar[Message]
    """The declaration of a client's upload: see `core.message`."""
    down: ClassVar[Message]
    """The declaration of the server's message to a client."""
    family: ClassVar[str] = "other methods"
    """One of `FAMILIES`."""
    about: ClassVar[str] = ""
    """The idea of the method in one line, for lists and tables."""
    same_part: ClassVar[SamePart] = "none"
    """The part of the clients' networks that needs the same architecture at all clients. A
    federation whose clients differ there is refused before anything runs."""
    weighs_by_examples: ClassVar[bool] = False
    """Whether the server learns how many training samples each client has."""
    accepts_newcomers: ClassVar[bool] = False
    """Whether the server has a header for a client that comes after the last round."""
    releases_once: ClassVar[bool] = False
    """True if a client tells of its data once, and repeats that when it is asked again. Privacy
    counts one release only if the message keeps what was released (`Message.keeps_release`)."""
    public_for: ClassVar[PublicFor] = "none"
    """The parties that need public data (`[public]`): the server alone, or all clients, which then
    find them in `client.public`. Without such data the method is refused before anything runs."""
    public_labels: ClassVar[bool] = False
    """True if the method reads the labels of public data; else these are -1."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        for name in DERIVED:
            if getattr(cls, name) is not getattr(Method, name):
                raise TypeError(
                    f"{cls.__name__}.{name} follows from what the method declares as `up` and "
                    "`down` (fedgh.methods.api): change the declaration"
                )
        for name, kind in inspect.get_annotations(cls).items():
            declared = hasattr(Method, name) or name in DECLARED
            if declared and "ClassVar" not in str(kind):
                raise TypeError(
                    f"{cls.__name__}.{name}: remove the annotation, which makes it a setting"
                )
        for name, now in RENAMED.items():
            if callable(cls.__dict__.get(name)) or (name == "welcomes" and name in cls.__dict__):
                raise TypeError(f"{cls.__name__}.{name} is called {now} now; see the changelog")
        dataclass(frozen=True)(cls)

    @property
    def shares(self) -> Sharing:
        """The kind of knowledge about a client's data in its uploads.

        Only nothing, class means and moments can be bounded by `privacy`.
        """
        return self.up.shares

    @property
    def own_network_crosses(self) -> bool:
        """True if messages carry a client's own network, or more of it than the header."""
        return self.up.holds_own_network or self.down.holds_own_network

    def upload_specs(self, shapes: Shapes) -> list[Spec]:
        """The tensors of an upload; anything else is rejected."""
        return self.up.specs(self, shapes)

    def download_specs(self, shapes: Shapes) -> list[Spec]:
        """The tensors that a client may be sent: those of one of these specs."""
        return self.down.specs(self, shapes)

    def shared_network(self, task: Task) -> nn.Module:
        """Return the network that the method shares beside the clients' own, at its start.

        All parties make the same one: from the seed, by `fedgh.models.shared_model`.
        """
        raise MethodError(f"{self.name} declares a shared network: define shared_network")

    def init_server(self, task: Task, models: Models, rng: torch.Generator) -> Payload:
        """Return what the server holds before the first round.

        A method that cannot work with these models raises ConfigError here, before anything runs.
        """
        return {}

    def init_client(self, client: Client) -> None:  # noqa: B027
        """Give a new client what it needs beside its model."""

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        """Return what the server sends to this participant; by default all that is `sendable`."""
        return self.sendable(server)

    def sendable(self, server: Payload) -> Payload:
        """Return all that `broadcast` may ever send: no row of it may exceed `run.max_norm`.

        By default all that the server holds; less, where it keeps some of that to itself.
        """
        return server

    @abstractmethod
    def client_update(self, client: Client, down: Payload) -> Payload:
        """Learn from `down` and the local data; return the upload."""

    @abstractmethod
    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        """Consume uploads in client order, as they come; return what the server holds next."""

    def check_upload(  # noqa: B027
        self, task: Task, payload: Payload, max_norm: float
    ) -> None:
        """Raise WireError for an upload that is as declared, and yet impossible."""

    def logits(self, client: Client, x: Tensor) -> Tensor:
        """Return the logits by which the client is evaluated on its own data."""
        out: Tensor = client.model(x)
        return out

    def global_logits(self, client: Client, x: Tensor) -> Tensor:
        """Return logits over all classes, for samples of any client; by default `logits`."""
        return self.logits(client, x)

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor] | None:
        """Return the function of inputs whose class means or moments are sent; None: none are.

        It follows from `up`. A method that sends means of something else says so here, or an audit
        attacks what is not sent.
        """
        return self.up.averaged(client)

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
