"""Declarations of the messages between a client and the server.

A method declares its upload and its download as class attributes:

    up, down = PerClass("representation", counts=True), PerClass("representation")

The declaration determines everything else: the tensors that are accepted, the size of the largest
message, and what an upload reveals of a client's data, and therefore whether privacy, defences and
audits apply.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from fedgh.core import wire
from fedgh.core.average import network_spec, network_state, network_weights
from fedgh.core.header import header_spec
from fedgh.core.sums import ClassTotals, Scale, Summation, WeightedTensors
from fedgh.core.types import Client, Payload, SplitModel, Task, part
from fedgh.errors import MethodError, WireError

if TYPE_CHECKING:
    from fedgh.core.method import Method

Sharing = Literal["nothing", "class means", "moments", "more"]
"""Kinds of information about a client's data in an upload, from least to most."""

SamplePart = Literal["representations", "logits", "labels"]
"""The parts of a message about each training sample."""


@dataclass(frozen=True)
class Shapes:
    """The task and the network that determine the shapes of a client's messages."""

    task: Task
    network: Callable[[], SplitModel]  # returns a network of the client's architecture

    @classmethod
    def of(cls, client: Client) -> "Shapes":
        """Return the shapes of a client in this process."""
        return cls(client.task, lambda: client.model)


class Message(ABC):
    """The declaration of a message. `A + B` declares one message with the tensors of both."""

    @property
    def text(self) -> str:
        """The content in a few words, for lists and tables."""
        return "other tensors"

    @property
    def shares(self) -> Sharing:
        """The kind of information about the client's data in such an upload."""
        return "more"

    @property
    def max_norm(self) -> float:
        """An upper bound of the norms of averaged vectors, for any network and data."""
        return math.inf

    @property
    def names_classes(self) -> bool:
        """True if the tensor `classes` lists classes of the client."""
        return False

    @property
    def holds_own_network(self) -> bool:
        """True if it contains the client's own network, or a part of it other than the header."""
        return False

    @property
    def keeps_release(self) -> bool:
        """True if a private upload is computed once, then repeated: see `Method.releases_once`."""
        return False

    @abstractmethod
    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        """Return the specs of the message: one, or several if it has one of several forms."""

    def check(self, payload: Payload) -> None:  # noqa: B027
        """Raise WireError for values that fit the spec but that no honest sender can have."""

    def check_private(self, client: Client, payload: Payload) -> None:  # noqa: B027
        """Raise MethodError for an upload that does not come from the privacy mechanism."""

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor] | None:
        """Return the function of inputs whose means are sent; None if no means are sent."""
        return None

    def summation(self, method: "Method", shapes: Shapes, scale: Scale) -> Summation:
        """Return how such uploads are added up; raise MethodError if they cannot be."""
        specs, by_samples = self.specs(method, shapes), method.weighs_by_examples
        return WeightedTensors.of(method.name, self.text, specs, scale, by_samples=by_samples)

    def __add__(self, other: "Message") -> "Message":
        return Combined((self, other))


@dataclass(frozen=True)
class Nothing(Message):
    """A message without tensors."""

    @property
    def text(self) -> str:
        return "nothing"

    @property
    def shares(self) -> Sharing:
        return "nothing"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [{}]


@dataclass(frozen=True)
class PerClass(Message):
    """`classes` [s], and for each class a row of `means` [s, width] and optionally of `counts` [s].

    A row is a mean of representations, or of outputs, which are probabilities with the sum 1.
    `class_means`, `class_statistics` and `class_outputs` compute such payloads.
    """

    of: Literal["representation", "output"]
    counts: bool = False  # numbers of samples of the means

    def __post_init__(self) -> None:
        _check_choice(self.of, "representation", "output")

    @property
    def text(self) -> str:
        means = "class means" if self.of == "representation" else "mean outputs per class"
        return f"{means} and counts" if self.counts else means

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
        released = release.payload if release and release.round == client.round else {}
        if not all(name in released and released[name].equal(payload[name]) for name in payload):
            raise MethodError(
                "with privacy, send class means exactly as class_means, class_statistics or "
                "class_outputs return them: other values have no noise"
            )

    def summation(self, method: "Method", shapes: Shapes, scale: Scale) -> Summation:
        if not self.counts:
            return super().summation(method, shapes, scale)  # raises an error: rows vary
        width = shapes.task.rep_dim if self.of == "representation" else shapes.task.num_classes
        return ClassTotals(shapes.task.num_classes, width, scale)

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor]:
        if self.of == "representation":
            return client.model.represent
        return lambda x: client.model(x).softmax(dim=1)


@dataclass(frozen=True)
class LabelCounts(Message):
    """`counts` [classes]: the samples of each class, 0 for a class that the sender lacks."""

    @property
    def text(self) -> str:
        return "counts per class"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [{"counts": wire.Field(torch.int32, (shapes.task.num_classes,), at_least=0)}]

    def check(self, payload: Payload) -> None:
        if "counts" in payload and not bool(payload["counts"].any()):
            raise WireError("'counts' has no sample of any class")


@dataclass(frozen=True)
class Header(Message):
    """`weight` [classes, rep_dim] and `bias` [classes] of a linear header."""

    @property
    def text(self) -> str:
        return "header"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [header_spec(shapes.task)]


@dataclass(frozen=True)
class Network(Message):
    """Weights and running statistics of a network, or of a part of it.

    `own` is the client's network, so shapes may differ between clients; `shared` is the network
    that the method's `shared_network` makes, the same for all clients.
    """

    whose: Literal["own", "shared"] = "own"
    part: str = ""  # path of a module, such as "extractor"; empty: the whole network
    statistics: bool = True  # with running statistics of batch normalisation

    @property
    def text(self) -> str:
        return (self.part or "network") if self.whose == "own" else "shared network"

    @property
    def holds_own_network(self) -> bool:
        return self.whose == "own" and self.part != "header"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        whole: nn.Module = (
            shapes.network() if self.whose == "own" else method.shared_network(shapes.task)
        )
        state = network_state if self.statistics else network_weights
        return [network_spec(state(whole.get_submodule(self.part)))]


@dataclass(frozen=True)
class PublicOutputs(Message):
    """A row of `logits` or `probabilities` for each public sample that a round uses."""

    kind: Literal["logits", "probabilities"] = "logits"
    samples: str = ""  # the method's field with their largest number; empty: all public samples

    def __post_init__(self) -> None:
        _check_choice(self.kind, "logits", "probabilities")

    @property
    def text(self) -> str:
        return f"{self.kind} of public samples"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        task = shapes.task
        rows = task.public_size
        if self.samples:
            rows = min(rows, int(getattr(method, self.samples)))
        if rows < 1:
            raise MethodError(
                f"{method.name} sends outputs of {rows} public samples; declare public_for, and "
                "set public.samples"
            )
        return [{self.kind: _outputs(task, (rows,), probabilities=self.kind == "probabilities")}]

    def check(self, payload: Payload) -> None:
        if self.kind == "probabilities" and self.kind in payload:
            _check_sums(self.kind, payload[self.kind])


@dataclass(frozen=True)
class QuantisedOutputs(Message):
    """`labels` of all public samples; with `changes` alternatively those of the samples `where`.

    A label is a class (one bit), or a whole number for each class, with the sum 2^bits - 1.
    """

    bits: int  # per class: 1 to 8
    changes: bool = False

    @property
    def text(self) -> str:
        return "quantised outputs of public samples" + (" or changes" if self.changes else "")

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        size, classes = shapes.task.public_size, shapes.task.num_classes
        some = wire.Dim("changed", size)
        where = wire.Field(torch.int32, (some,), at_least=0, at_most=size - 1)
        whole, changed = (self._labels(rows, classes) for rows in (size, some))
        forms: list[wire.Spec] = [{"labels": whole}, {"where": where, "labels": changed}]
        return forms if self.changes else forms[:1]

    def _labels(self, rows: int | wire.Dim, classes: int) -> wire.Field:
        if self.bits == 1:
            return wire.Field(torch.uint8, (rows,), at_most=classes - 1)
        return wire.Field(torch.uint8, (rows, classes), at_most=2**self.bits - 1)

    def check(self, payload: Payload) -> None:
        if "where" in payload and bool((payload["where"].diff() <= 0).any()):
            raise WireError("'where' does not ascend")
        if self.bits > 1 and "labels" in payload:
            sums, expected = payload["labels"].sum(1), 2**self.bits - 1
            if bool((sums != expected).any()):
                raise WireError(f"'labels' has a row whose sum is not {expected}")


@dataclass(frozen=True, init=False)
class PerSample(Message):
    """A row for each training sample of the client, in their order.

    `representations` [n, rep_dim], `logits` [n, classes] and `labels` [n], or some of them.
    """

    parts: tuple[SamplePart, ...]

    def __init__(self, *parts: SamplePart) -> None:
        for each in parts:
            _check_choice(each, *get_args(SamplePart))
        object.__setattr__(self, "parts", parts)

    @property
    def text(self) -> str:
        return f"{', '.join(self.parts)} of each sample"

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        task, rows = shapes.task, wire.Dim("samples", shapes.task.max_samples)
        known: dict[SamplePart, wire.Field] = {
            "representations": wire.Field(torch.float32, (rows, task.rep_dim)),
            "logits": wire.Field(torch.float32, (rows, task.num_classes)),
            "labels": wire.Field(torch.int32, (rows,), at_least=0, at_most=task.num_classes - 1),
        }
        return [{each: known[each] for each in self.parts}]

    def check(self, payload: Payload) -> None:
        if any(each in payload and len(payload[each]) == 0 for each in self.parts):
            raise WireError("rows for each training sample, and there is none")


@dataclass(frozen=True)
class Own(Message):
    """A message whose spec a function returns, for tensors that no other declaration covers.

    `own_network` declares that it contains the client's network: only then may the function use
    `shapes.network`.
    """

    spec: Callable[["Method", Shapes], wire.Spec]
    own_network: bool = False
    about: str = "other tensors"  # the content in a few words

    @property
    def text(self) -> str:
        return self.about

    @property
    def holds_own_network(self) -> bool:
        return self.own_network

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        return [
            self.spec(
                method, shapes if self.own_network else replace(shapes, network=_undeclared_network)
            )
        ]


@dataclass(frozen=True)
class Named(Message):
    """A message whose tensors have a prefix, to distinguish it from others in `A + B`."""

    prefix: str
    inner: Message

    @property
    def text(self) -> str:
        return self.inner.text

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
    """One message with the tensors of several; it shares "more" if these share different kinds."""

    parts: tuple[Message, ...]

    @property
    def text(self) -> str:
        return " and ".join(dict.fromkeys(each.text for each in self.parts))

    @property
    def shares(self) -> Sharing:
        kinds = {each.shares for each in self.parts} - {"nothing"}
        return kinds.pop() if len(kinds) == 1 else "more" if kinds else "nothing"

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
        specs: list[wire.Spec] = [{}]
        for each in self.parts:
            specs = [_merged(one, more) for one in specs for more in each.specs(method, shapes)]
        return specs

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
    """One of several messages, distinguished by the names of their tensors.

    As an upload it shares "more", because privacy, defences and audits need to know its form.
    """

    forms: tuple[Message, ...]

    def __init__(self, *forms: Message) -> None:
        object.__setattr__(self, "forms", forms)

    @property
    def text(self) -> str:
        return "; or ".join(dict.fromkeys(form.text for form in self.forms))

    @property
    def holds_own_network(self) -> bool:
        return any(form.holds_own_network for form in self.forms)

    def specs(self, method: "Method", shapes: Shapes) -> list[wire.Spec]:
        specs = [spec for form in self.forms for spec in form.specs(method, shapes)]
        if len({frozenset(spec) for spec in specs}) < len(specs):
            raise MethodError(
                "two forms of one message have tensors of the same names; give one of them a "
                "prefix: Named(prefix, message)"
            )
        return specs

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


def _undeclared_network() -> SplitModel:
    raise MethodError(
        "the shapes of this message depend on the client's network; declare "
        "Own(function, own_network=True)"
    )


def _merged(one: wire.Spec, more: wire.Spec) -> wire.Spec:
    if shared := sorted(one.keys() & more.keys()):
        raise MethodError(
            f"two parts of one message have tensors {', '.join(shared)}; give one of them a "
            "prefix: Named(prefix, message)"
        )
    return {**one, **more}


def _outputs(task: Task, rows: tuple[int, ...], *, probabilities: bool) -> wire.Field:
    """Return the field of outputs, one per class; probabilities may leave 0..1 by rounding."""
    shape = (*rows, task.num_classes)
    if not probabilities:
        return wire.Field(torch.float32, shape)
    return wire.Field(torch.float32, shape, at_least=-1e-3, at_most=1 + 1e-3)


def _check_sums(name: str, rows: Tensor) -> None:
    """Raise WireError unless each row of probabilities has the sum 1."""
    error = (rows.double().sum(1) - 1).abs()
    if bool((error > 0.01).any()):
        raise WireError(f"'{name}' has a row whose sum differs from 1 by {float(error.max()):.3g}")


def for_each_class(task: Task, **fields: wire.Field) -> wire.Spec:
    """Return the spec of `classes`, and of `fields` with one row for each class."""
    size = wire.Dim("classes", task.num_classes)
    return {
        "classes": wire.Field(torch.int32, (size,), classes=task.num_classes),
        **{name: replace(each, shape=(size, *each.shape)) for name, each in fields.items()},
    }
