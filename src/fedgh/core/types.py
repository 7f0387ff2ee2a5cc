"""The nouns of a federation: what crosses, who takes part, what is asked and answered."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BeforeValidator, ConfigDict, Field
from torch import Tensor, nn

from fedgh.core.rng import stream
from fedgh.errors import MethodError
from fedgh.privacy.mechanism import Privacy

CPU = torch.device("cpu")

Payload = dict[str, Tensor]
"""Named CPU tensors. The only thing that ever crosses between a client and the server."""


def prefixed(prefix: str, payload: Payload) -> Payload:
    """The same tensors under names that begin with `prefix`."""
    return {prefix + name: tensor for name, tensor in payload.items()}


def part(payload: Payload, prefix: str) -> Payload:
    """The tensors whose names begin with `prefix`, under the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in payload.items() if n.startswith(prefix)}


def moved(payload: Payload, device: torch.device) -> Payload:
    """The same tensors on a device."""
    return {name: tensor.to(device) for name, tensor in payload.items()}


def _split_commas(value: object) -> object:
    return (
        [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str)
        else value
    )


NameList = Annotated[list[str], BeforeValidator(_split_commas)]
"""A list of names; on a command line also `a,b,c`."""

Augmentation = Literal["flip", "crop", "erase"]

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleName = Literal["constant", "step", "cosine"]

GlobalRounds = Literal["last", "every", "never"]
"""The rounds in which clients are judged on all classes: of those in which they are judged."""


UNKNOWN_SAMPLES = 100_000
"""A bound on a client's training samples where its data are its own, and nobody else knows."""


@dataclass(frozen=True)
class Task:
    """What everybody in the federation knows."""

    num_classes: int
    rep_dim: int
    num_clients: int
    rounds: int
    seed: int
    input_shape: tuple[int, ...] = ()
    privacy: Privacy | None = None  # how uploads are made private
    public_size: int = 0  # public samples that the method may count on
    max_samples: int = UNKNOWN_SAMPLES  # training samples of a client, at most

    def stream(self, name: str, round: int = 0) -> torch.Generator:
        """Return a random stream of a round that all parties can draw from alike."""
        return stream(self.seed, f"all/{name}", round=round)


@dataclass(frozen=True)
class LocalTraining:
    """Settings of a client's local training. The optimizer starts afresh every round."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    epochs: Annotated[int, Field(ge=1)] = 1  # passes over the own data in a round
    batch_size: Annotated[int, Field(ge=1)] = 64  # samples in a step
    lr: Annotated[float, Field(gt=0)] = 0.01  # learning rate
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # does not outlive a round
    weight_decay: Annotated[float, Field(ge=0)] = 0.0  # of all weights
    clip: Annotated[float, Field(ge=0)] = 0.0  # largest gradient norm; 0 = no clipping
    optimizer: OptimizerName = "sgd"  # adam and adamw have no `momentum`
    schedule: ScheduleName = "constant"  # of the learning rate, over the rounds
    schedule_rounds: Annotated[int, Field(ge=1)] = 10  # for "step": rounds between two steps
    schedule_factor: Annotated[float, Field(gt=0, le=1)] = 0.1  # for "step": times this at each
    augment: Annotated[list[Augmentation], BeforeValidator(_split_commas)] = field(
        default_factory=list
    )  # random changes to training images

    def rate_factor(self, round: int, rounds: int) -> float:
        """Return what the learning rate is multiplied by in a round."""
        if self.schedule == "step":
            return float(self.schedule_factor ** ((round - 1) // self.schedule_rounds))
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
        return 1.0


class SplitModel(nn.Module):
    """A client's network: its own extractor x -> R^r, and a linear header R^r -> R^C."""

    def __init__(self, extractor: nn.Module, header: nn.Linear) -> None:
        super().__init__()
        self.extractor = extractor
        self.header = header

    def represent(self, x: Tensor) -> Tensor:
        """The representation of each sample, [batch, r]."""
        out: Tensor = self.extractor(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """The logits of each sample, [batch, C]."""
        out: Tensor = self.header(self.represent(x))
        return out


@dataclass(frozen=True)
class Examples:
    """Rows `index` of data that all clients of a machine share: a view, not a copy."""

    x: Tensor
    y: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """The class of each example."""
        return self.y[self.index]


def declared_public(examples: Examples | None) -> Examples:
    """Return public data; raise MethodError where the method has not declared that it uses them."""
    if examples is None:
        raise MethodError(
            "there are no public data here: the method declares with public_for who has"
        )
    return examples


@dataclass(frozen=True)
class ClientData:
    """A client's own data, split 8:1:1."""

    train: Examples
    validation: Examples
    test: Examples


@dataclass(frozen=True)
class Release:
    """Class means as they leave a client, with noise if the run is private."""

    round: int
    payload: Payload


@dataclass
class Client:
    """One participant while it works: its model, its data, and what it keeps between rounds."""

    id: int
    task: Task
    model: SplitModel
    data: ClientData
    local: LocalTraining
    modules: nn.ModuleDict = field(default_factory=nn.ModuleDict)  # a method's second network
    memory: Payload = field(default_factory=dict)  # what a method keeps between rounds
    make_model: Callable[[], SplitModel] | None = None  # another network like its own
    privacy: Privacy | None = None  # how its class means are made before they leave it
    release: Release | None = None  # the class means that it last made
    public_examples: Examples | None = None  # of a method with `public_for = "all"`
    round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def public(self) -> Examples:
        """The public data. Raises MethodError for a method without `public_for = "all"`."""
        return declared_public(self.public_examples)

    @property
    def device(self) -> torch.device:
        """Where the client computes."""
        return self.model.header.weight.device

    def to(self, device: torch.device) -> None:
        """Compute there from now on."""
        self.model.to(device)
        self.modules.to(device)
        self.memory = moved(self.memory, device)

    @property
    def nbytes(self) -> int:
        """The size of its state."""
        return sum(tensor.nbytes for tensor in self.live_state().values())

    def stream(self, name: str) -> torch.Generator:
        """The random stream `name` of this client in this round."""
        return stream(self.task.seed, name, self.id, self.round)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of a block to `seconds[phase]`."""
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def live_state(self) -> Payload:
        """Everything that outlives a round, where it is."""
        return {
            **prefixed("model.", self.model.state_dict()),
            **prefixed("modules.", self.modules.state_dict()),
            **prefixed("memory.", self.memory),
        }

    def state(self) -> Payload:
        """A copy of everything that outlives a round, in main memory."""
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.live_state().items()
        }

    def load(self, state: Payload) -> None:
        """Become what `state` describes."""
        self.model.load_state_dict(part(state, "model."))
        self.modules.load_state_dict(part(state, "modules."))
        kept = {name: tensor.clone() for name, tensor in part(state, "memory.").items()}
        self.memory = moved(kept, self.device)


@dataclass(frozen=True)
class Recipient:
    """A client as the server knows it when it sends something to it."""

    id: int
    classes: Tensor | None = None
    """bool [C], the classes of its uploads, where messages both ways are per class; None before
    the first of them."""
    last_round: int = 0  # in which the client last trained; 0: never
    group: int = 0  # the same for clients with the same network, where networks cross
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of its network's tensors; empty unless `up` or `down` carries clients' networks."""


@dataclass(frozen=True)
class Upload:
    """What the server learns from one client in one round."""

    client_id: int
    num_examples: int  # 0 unless the method weighs by it
    payload: Payload
    group: int = 0  # the same for clients with the same network, where networks cross


@dataclass(frozen=True)
class Job:
    """What the server asks of one client: train on `down` (None: do not train), be judged."""

    client_id: int
    round: int
    down: bytes | None
    evaluate: bool  # on its own data
    trained: int = 0  # the round in which the client last trained: what it starts from
    max_upload: int = 0  # bytes of the largest upload that may answer it
    evaluate_globally: bool = False  # on all classes, if it has ever trained


@dataclass(frozen=True)
class Reply:
    """What came back. With `error` something failed; without `up` the client is as it was."""

    client_id: int
    round: int
    num_examples: int = 0
    up: bytes | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    invalid: str | None = None  # why what came is no answer to the job; then there is nothing else
    wire_bytes: int = 0  # of the messages there and back, where they travel between machines
