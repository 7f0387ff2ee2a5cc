"""The base class of methods: declarations of messages, a client's and the server's update.

The fields of a method are its settings. On the client's side a method handles one client at a time,
on the server's side a stream of uploads. It never accesses a file, a process or the clock, and does
not change received tensors in place. `fedgh.methods.api` has all that the author of a method needs.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from fedgh.core.message import Message, Shapes, Sharing
from fedgh.core.names import Names
from fedgh.core.types import Client, NameList, Payload, Recipient, SplitModel, Task
from fedgh.core.uploads import Uploads
from fedgh.core.wire import Spec
from fedgh.errors import MethodError

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Several = Annotated[int, Field(ge=2, lt=2**31)]  # such as a batch for batch normalisation
NetworkName = Annotated[str, Names.NETWORK]
NetworkNames = Annotated[NameList, Names.NETWORK, Field(min_length=1)]

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
"""One new model of each architecture; that of client k is models[k % len(models)]."""

RELEASE = "release."
"""Prefix, in a client's memory, of the private upload that it computed once and sends again."""

DERIVED = ("shares", "upload_specs", "download_specs", "own_network_crosses")
"""Attributes that follow from `up` and `down`; a method must not define them."""

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
"""Hooks of earlier versions, with their new names; a method that defines one is rejected."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Method(ABC):
    """The base class of methods. `client_update` and `server_update` are the algorithm.

    Every subclass is automatically a frozen dataclass.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    name: ClassVar[str]
    """The name in messages and tables; by default the name of the class in lower case."""
    up: ClassVar[Message]
    """The declaration of a client's upload: see `core.message`."""
    down: ClassVar[Message]
    """The declaration of a client's download."""
    family: ClassVar[str] = "other methods"
    """One of `FAMILIES`."""
    about: ClassVar[str] = ""
    """The idea of the method in one line, for lists and tables."""
    same_part: ClassVar[SamePart] = "none"
    """The part of the networks that needs the same architecture at all clients. An experiment
    whose clients differ there is refused before it runs."""
    weighs_by_examples: ClassVar[bool] = False
    """True if clients tell the server how many training samples they have."""
    sums_suffice: ClassVar[bool] = False
    """True if `server_update` does the same for one upload, which is the weighted mean of all as
    `up` declares it, as for all of them. Only then can uploads be masked (`[secure]`). A class that
    defines `server_update` must declare it anew."""
    accepts_newcomers: ClassVar[bool] = False
    """True if the server has a header for a client that joins after training has started."""
    releases_once: ClassVar[bool] = False
    """True if a client releases its data once, and later uploads repeat that release. Privacy
    counts a single release only if the message keeps it (`Message.keeps_release`)."""
    public_for: ClassVar[PublicFor] = "none"
    """The parties that need public data (`[public]`): none, the server, or the server and all
    clients (in `client.public`). Without such data an experiment is refused before it runs."""
    public_labels: ClassVar[bool] = False
    """True if the method reads the labels of public data; otherwise all labels are -1."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        if "server_update" in cls.__dict__ and "sums_suffice" not in cls.__dict__:
            cls.sums_suffice = False
        for name in DERIVED:
            if getattr(cls, name) is not getattr(Method, name):
                raise TypeError(
                    f"{cls.__name__}.{name} follows from the declarations `up` and `down` "
                    "(fedgh.methods.api): change these instead"
                )
        for name, kind in inspect.get_annotations(cls).items():
            declared = hasattr(Method, name) or name in DECLARED
            if declared and "ClassVar" not in str(kind):
                raise TypeError(
                    f"{cls.__name__}.{name}: remove the annotation, which makes it a setting"
                )
        for name, now in RENAMED.items():
            if callable(cls.__dict__.get(name)) or (name == "welcomes" and name in cls.__dict__):
                raise TypeError(f"{cls.__name__}.{name} was renamed to {now}; see the changelog")
        dataclass(frozen=True)(cls)

    @property
    def shares(self) -> Sharing:
        """The kind of information about a client's data in its uploads.

        Privacy is possible only for "nothing", "class means" and "moments".
        """
        return self.up.shares

    @property
    def own_network_crosses(self) -> bool:
        """True if messages contain a client's own network, or more of it than the header."""
        return self.up.holds_own_network or self.down.holds_own_network

    def upload_specs(self, shapes: Shapes) -> list[Spec]:
        """Return the specs of an upload; the server rejects anything else."""
        return self.up.specs(self, shapes)

    def download_specs(self, shapes: Shapes) -> list[Spec]:
        """Return the specs of a download; it must match one of them."""
        return self.down.specs(self, shapes)

    def shared_network(self, task: Task) -> nn.Module:
        """Return the initial shared network, which the method uses beside the clients' own.

        The server and all clients make the same one from the seed, with
        `fedgh.models.shared_model`.
        """
        raise MethodError(
            f"{self.name} declares a shared network, so it must define shared_network"
        )

    def init_server(self, task: Task, models: Models, rng: torch.Generator) -> Payload:
        """Return the server's state before the first round.

        Raise ConfigError if the method cannot work with these models.
        """
        return {}

    def init_client(self, client: Client) -> None:  # noqa: B027
        """Add networks and tensors that a new client needs beside its model."""

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        """Return the download of this participant; by default all that is `sendable`."""
        return self.sendable(server)

    def sendable(self, server: Payload) -> Payload:
        """Return all tensors that `broadcast` may send; no row of them may exceed `run.max_norm`.

        By default the whole state. Override it if the server never sends some of its tensors.
        """
        return server

    @abstractmethod
    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train with the download and the client's data; return the upload."""

    @abstractmethod
    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        """Process the uploads, in client order; return the server's next state."""

    def check_upload(  # noqa: B027
        self, task: Task, payload: Payload, max_norm: float
    ) -> None:
        """Raise WireError for an upload that is as declared but impossible."""

    def logits(self, client: Client, x: Tensor) -> Tensor:
        """Return the logits that are evaluated on the client's own data."""
        out: Tensor = client.model(x)
        return out

    def global_logits(self, client: Client, x: Tensor) -> Tensor:
        """Return logits over all classes, for samples of any client; by default `logits`."""
        return self.logits(client, x)

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor] | None:
        """Return the function of inputs whose class means or moments are sent; None if none are.

        It follows from `up`. Override it in a method that sends means of something else, because an
        audit attacks the means of this function.
        """
        return self.up.averaged(client)

    def will_release(self, client: Client) -> bool:
        """Return True if the client's next upload is a new release of its data."""
        return True

    def refresh(self, client: Client, down: Payload) -> Payload:
        """Apply a download without training; return the upload."""
        raise self._cannot_forget()

    def forget(self, server: Payload, client_id: int) -> Payload:
        """Return the server's state as if the client had never sent an upload."""
        raise self._cannot_forget()

    def enlarged(self, server: Payload) -> Payload:
        """Return the server's state with room for one more client."""
        return server

    def _cannot_forget(self) -> MethodError:
        return MethodError(
            f"{self.name} cannot forget a client: its uploads have influenced the other clients' "
            "networks; fedgh_plus can"
        )
