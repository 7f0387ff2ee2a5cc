"""Declarations of what crosses between a client and the server.

A method declares its upload and its download as class attributes:

    up, down = PerClass("representation", counts=True), PerClass("representation")

All else follows from the declaration: the tensors that are accepted, the size of the largest
message, and what an upload tells of a client's data, so whether privacy, defences and audits apply.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from fedgh.core import wire
from fedgh.core.average import network_spec, network_state
from fedgh.core.header import header_spec
from fedgh.core.types import Client, Payload, SplitModel, Task, part
from fedgh.errors import MethodError, WireError

if TYPE_CHECKING:
    from fedgh.core.method import Method

Sharing = Literal["nothing", "class means", "moments", "more"]
"""Kinds of knowledge about a client's data in an upload, the least first."""


@dataclass(frozen=True)
class Shapes:
    """The task and the network that determine the shapes of a client's messages."""

    task: Task
    network: Callable[[], SplitModel]  # one of the client's architecture

    @classmethod
    def of(cls, client: Client) -> "Shapes":
        """Return the shapes of a client that is here."""
        return cls(client.task, lambda: client.model)


class Message(ABC):
    """The content of a message, declared. `A + B` is one message with the tensors of both."""

    @property
    def shares(self) -> Sharing:
        """The kind of knowledge about the client's data in such an upload."""
        return "more"

    @property
    def max_norm(self) -> float:
        """A length that no averaged vector exceeds, whatever the network and the data."""
        return math.inf

    @property
    def names_classes(self) -> bool:
        """True if the tensor `classes` lists classes of the client."""
        return False

    @property
    def holds_own_network(self) -> bool:
        """True if it carries the client's own network, or a part of it other than the header."""
        return False

    @property
    def keeps_release(self) -> bool:
        """True if a private upload is made once and repeated: see `Method.releases_once`."""
        return False

    @abstractmethod
    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        """Return the tensors of the message; several specs where it has one of several forms."""

    def check(self, payload: Payload) -> None:  # noqa: B027
        """Raise WireError for values that fit the spec and that no honest sender has."""

    def check_private(self, client: Client, payload: Payload) -> None:  # noqa: B027
        """Raise MethodError for an upload that the privacy mechanism has not made."""

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor] | None:
        """Return the function of inputs whose means are sent; None where no means are."""
        return None

    def __add__(self, other: "Message") -> "Message":
        return Combined((self, other))


@dataclass(frozen=True)
class Nothing(Message):
    """A message without tensors."""

    @property
    def shares(self) -> Sharing:
        return "nothing"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [{}]


@dataclass(frozen=True)
class PerClass(Message):
    """`classes` [s], and for each of them a row of `means` [s, width] and perhaps of `counts` [s].

    Rows are means of representations, or of outputs: those are probabilities and add up to one.
    Made by `class_means`, `class_statistics` or `class_outputs`.
    """

    of: Literal["representation", "output"]
    counts: bool = False  # the samples behind each mean

    def __post_init__(self) -> None:
        _check_choice(self.of, "representation", "output")

    @property
    def shares(self) -> Sharing:
        return "class means"

    @property
    def names_classes(self) -> bool:
        return True

    @property
    def max_norm(self) -> float:
        return 1.0 if self.of == "output" else math.inf

    @property
    def _names(self) -> set[str]:
        return {"classes", "means", *(["counts"] if self.counts else [])}

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        task = shapes.task
        if self.of == "output":
            row = _outputs(task, (), probabilities=True)
        else:
            row = wire.Field(torch.float32, (task.rep_dim,))
        count = {"counts": wire.Field(torch.int32, (), at_least=1)} if self.counts else {}
        return [for_each_class(task, means=row, **count)]

    def check(self, payload: Payload) -> None:
        sent = payload.keys() >= self._names and ("counts" in payload) == self.counts
        if sent and self.of == "output":
            _check_sums("means", payload["means"])

    def check_private(self, client: Client, payload: Payload) -> None:
        release = client.release
        made = release.payload if release and release.round == client.round else {}
        if not all(name in made and made[name].equal(payload[name]) for name in payload):
            raise MethodError(
                "with privacy, class means are sent as class_means, class_statistics or "
                "class_outputs return them: what is computed otherwise has no noise"
            )

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor]:
        if self.of == "representation":
            return client.model.represent
        return lambda x: client.model(x).softmax(dim=1)


@dataclass(frozen=True)
class LabelCounts(Message):
    """`counts` [classes]: the samples of each class, 0 for a class that the sender lacks."""

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [{"counts": wire.Field(torch.int32, (shapes.task.num_classes,), at_least=0)}]

    def check(self, payload: Payload) -> None:
        if "counts" in payload and not bool(payload["counts"].any()):
            raise WireError("'counts' has no sample of any class")


@dataclass(frozen=True)
class Header(Message):
    """`weight` [classes, rep_dim] and `bias` [classes] of a linear header."""

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [header_spec(shapes.task)]


@dataclass(frozen=True)
class Network(Message):
    """Weights and running statistics of a network, or of a part of it.

    `own` is the network of the client, so every client may have other shapes; `shared` is what the
    method's `shared_network` makes, alike for all.
    """

    whose: Literal["own", "shared"] = "own"
    part: str = ""  # a module by its path, such as "extractor"; the whole network if empty

    @property
    def holds_own_network(self) -> bool:
        return self.whose == "own" and self.part != "header"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        whole: nn.Module = (
            shapes.network() if self.whose == "own" else method.shared_network(shapes.task)
        )
        return [network_spec(network_state(whole.get_submodule(self.part)))]


@dataclass(frozen=True)
class PublicOutputs(Message):
    """A row for each public sample that a round is about: `logits` or `probabilities`."""

    kind: Literal["logits", "probabilities"] = "logits"
    samples: str = ""  # the method's field that says how many; all public samples if empty

    def __post_init__(self) -> None:
        _check_choice(self.kind, "logits", "probabilities")

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        task = shapes.task
        rows = int(getattr(method, self.samples)) if self.samples else task.public_size
        if not 0 < rows <= task.public_size:
            raise MethodError(
                f"{method.name} sends outputs of {rows} public samples, and {task.public_size} are "
                "known: declare public_for, and see public.samples"
            )
        return [{self.kind: _outputs(task, (rows,), probabilities=self.kind == "probabilities")}]

    def check(self, payload: Payload) -> None:
        if self.kind == "probabilities" and self.kind in payload:
            _check_sums(self.kind, payload[self.kind])


@dataclass(frozen=True)
class Own(Message):
    """A message that a function specifies: for all that the other declarations do not cover.

    `own_network` declares that it carries the client's network: only then may the function look at
    that network's shapes.
    """

    spec: Callable[["Method", Shapes], wire.Spec]
    own_network: bool = False

    @property
    def holds_own_network(self) -> bool:
        return self.own_network

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [self.spec(method, shapes if self.own_network else replace(shapes, network=_secret))]


@dataclass(frozen=True)
class Named(Message):
    """A message whose tensors have a prefix, to tell it from others in one `A + B`."""

    prefix: str
    inner: Message

    @property
    def holds_own_network(self) -> bool:
        return self.inner.holds_own_network

    def check(self, payload: Payload) -> None:
        self.inner.check(part(payload, self.prefix))

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [
            {self.prefix + name: field for name, field in spec.items()}
            for spec in self.inner.specs(method, shapes)
        ]


@dataclass(frozen=True)
class Combined(Message):
    """One message with the tensors of several; what it shares is what the worst of them does."""

    parts: tuple[Message, ...]

    @property
    def shares(self) -> Sharing:
        shared = {each.shares for each in self.parts} - {"nothing"}
        return shared.pop() if len(shared) == 1 else "more" if shared else "nothing"

    @property
    def max_norm(self) -> float:
        norms = (each.max_norm for each in self.parts if each.shares != "nothing")
        return max(norms, default=math.inf)

    @property
    def names_classes(self) -> bool:
        return any(each.names_classes for each in self.parts)

    @property
    def holds_own_network(self) -> bool:
        return any(each.holds_own_network for each in self.parts)

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        found: list[wire.Spec] = [{}]
        for each in self.parts:
            found = [_joined(one, more) for one in found for more in each.specs(method, shapes)]
        return found

    def check(self, payload: Payload) -> None:
        for each in self.parts:
            each.check(payload)

    def check_private(self, client: Client, payload: Payload) -> None:
        for each in self.parts:
            each.check_private(client, payload)

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor] | None:
        functions = (each.averaged(client) for each in self.parts)
        return next((of for of in functions if of is not None), None)


@dataclass(frozen=True, init=False)
class OneOf(Message):
    """One of several messages, told apart by the names of their tensors.

    As an upload it shares "more": privacy, defences and audits need to know what comes.
    """

    forms: tuple[Message, ...]

    def __init__(self, *forms: Message) -> None:
        object.__setattr__(self, "forms", forms)

    @property
    def holds_own_network(self) -> bool:
        return any(form.holds_own_network for form in self.forms)

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        found = [spec for form in self.forms for spec in form.specs(method, shapes)]
        if len({frozenset(spec) for spec in found}) < len(found):
            raise MethodError(
                "two forms of one message have tensors of the same names; give one of them a "
                "prefix: Named(prefix, message)"
            )
        return found

    def check(self, payload: Payload) -> None:
        for form in self.forms:
            form.check(payload)


NOTHING = Nothing()
"""A message without tensors."""

HEADER: Message = Header()
"""A linear header: `weight` [classes, rep_dim] and `bias` [classes]."""


def _check_choice(value: str, *known: str) -> None:
    if value not in known:
        raise TypeError(f"'{value}': expected one of {', '.join(known)}")


def _secret() -> SplitModel:
    raise MethodError(
        "the shapes of a message are those of the client's network: declare "
        "Own(function, own_network=True)"
    )


def _joined(one: wire.Spec, more: wire.Spec) -> wire.Spec:
    if both := sorted(one.keys() & more.keys()):
        raise MethodError(
            f"two parts of one message have tensors {', '.join(both)}; give one of them a prefix: "
            "Named(prefix, message)"
        )
    return {**one, **more}


def _outputs(task: Task, rows: tuple[int, ...], *, probabilities: bool) -> wire.Field:
    """A number for each class; probabilities lie between 0 and 1, with room for rounding."""
    shape = (*rows, task.num_classes)
    if not probabilities:
        return wire.Field(torch.float32, shape)
    return wire.Field(torch.float32, shape, at_least=-1e-3, at_most=1 + 1e-3)


def _check_sums(name: str, rows: Tensor) -> None:
    """Raise WireError unless each row of probabilities adds up to one."""
    off = (rows.double().sum(1) - 1).abs()
    if bool((off > 0.01).any()):
        raise WireError(f"'{name}' has a row whose sum differs from 1 by {float(off.max()):.3g}")


def for_each_class(task: Task, **fields: wire.Field) -> wire.Spec:
    """Return the spec of some classes, and for each of them what `fields` declare."""
    some = wire.Dim("classes", task.num_classes)
    return {
        "classes": wire.Field(torch.int32, (some,), classes=task.num_classes),
        **{name: replace(each, shape=(some, *each.shape)) for name, each in fields.items()},
    }
