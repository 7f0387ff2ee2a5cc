"""The data types of a federation: payloads, tasks, clients, uploads, jobs and replies."""

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
from fedgh.secure.step import Step

CPU = torch.device("cpu")

Payload = dict[str, Tensor]
"""Named CPU tensors: the only content of messages between a client and the server."""


def prefixed(prefix: str, payload: Payload) -> Payload:
    """Return the tensors with `prefix` added to their names."""
    return {prefix + name: tensor for name, tensor in payload.items()}


def part(payload: Payload, prefix: str) -> Payload:
    """Return the tensors whose names begin with `prefix`, without that prefix."""
    return {n.removeprefix(prefix): t for n, t in payload.items() if n.startswith(prefix)}


def moved(payload: Payload, device: torch.device) -> Payload:
    """Return the tensors on a device."""
    return {name: tensor.to(device) for name, tensor in payload.items()}


def copied(payload: Payload) -> Payload:
    """Return contiguous copies of the tensors in main memory."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in payload.items()
    }


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
"""The evaluated rounds in which global accuracy is measured."""


UNKNOWN_SAMPLES = 100_000
"""Bound on a client's training samples where the server does not know its data."""


@dataclass(frozen=True)
class Task:
    """The values that the server and all clients know."""

    num_classes: int
    rep_dim: int
    num_clients: int
    rounds: int
    seed: int
    input_shape: tuple[int, ...] = ()
    privacy: Privacy | None = None  # the mechanism that makes uploads private; None without privacy
    public_size: int = 0  # number of public samples that the method uses
    max_samples: int = UNKNOWN_SAMPLES  # most training samples of a client
    secure: bool = False  # the server learns only sums of uploads

    def stream(self, name: str, round: int = 0) -> torch.Generator:
        """Return a random stream that is the same for the server and all clients in a round."""
        return stream(self.seed, f"all/{name}", round=round)


@dataclass(frozen=True)
class LocalTraining:
    """Settings of a client's local training. Each round starts with a new optimizer."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    epochs: Annotated[int, Field(ge=1)] = 1  # passes over the training split in a round
    batch_size: Annotated[int, Field(ge=1)] = 64  # samples per step
    lr: Annotated[float, Field(gt=0)] = 0.01  # learning rate
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of SGD; not kept between rounds
    weight_decay: Annotated[float, Field(ge=0)] = 0.0  # L2 penalty of all weights
    clip: Annotated[float, Field(ge=0)] = 0.0  # largest gradient norm; 0 = no clipping
    optimizer: OptimizerName = "sgd"  # adam and adamw have no `momentum`
    schedule: ScheduleName = "constant"  # change of the learning rate over the rounds
    schedule_rounds: Annotated[int, Field(ge=1)] = 10  # for "step": rounds between steps
    schedule_factor: Annotated[float, Field(gt=0, le=1)] = 0.1  # for "step": factor of each step
    augment: Annotated[list[Augmentation], BeforeValidator(_split_commas)] = field(
        default_factory=list
    )  # random changes to training images

    def rate_factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate in a round."""
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
        """Return the representation of each sample, [batch, r]."""
        out: Tensor = self.extractor(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each sample, [batch, C]."""
        out: Tensor = self.header(self.represent(x))
        return out


@dataclass(frozen=True)
class Examples:
    """Samples: rows `index` of tensors that all clients on a machine share, without a copy."""

    x: Tensor
    y: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """The class of each sample."""
        return self.y[self.index]


def declared_public(examples: Examples | None) -> Examples:
    """Return public data; raise MethodError if the method does not declare that it uses them."""
    if examples is None:
        raise MethodError(
            "there are no public data here; declare with public_for which parties have them"
        )
    return examples


@dataclass(frozen=True)
class ClientData:
    """A client's training, validation and test split, 8:1:1."""

    train: Examples
    validation: Examples
    test: Examples


@dataclass(frozen=True)
class Release:
    """The class means that a client sends in a round, with noise if the run has privacy."""

    round: int
    payload: Payload


@dataclass
class Client:
    """A client at work: its network, its data, and its state between rounds."""

    id: int
    task: Task
    model: SplitModel
    data: ClientData
    local: LocalTraining
    modules: nn.ModuleDict = field(default_factory=nn.ModuleDict)  # networks of the method
    memory: Payload = field(default_factory=dict)  # tensors that the method keeps between rounds
    make_model: Callable[[], SplitModel] | None = None  # creates a network of its architecture
    privacy: Privacy | None = None  # mechanism that makes its class means private
    release: Release | None = None  # the class means that it last computed
    public_examples: Examples | None = None  # for a method with `public_for = "all"`
    round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def public(self) -> Examples:
        """The public data. Raise MethodError for a method without `public_for = "all"`."""
        return declared_public(self.public_examples)

    @property
    def device(self) -> torch.device:
        """The device on which the client computes."""
        return self.model.header.weight.device

    def to(self, device: torch.device) -> None:
        """Move the client's networks and tensors to a device."""
        self.model.to(device)
        self.modules.to(device)
        self.memory = moved(self.memory, device)

    @property
    def nbytes(self) -> int:
        """The size of its state in bytes."""
        return sum(tensor.nbytes for tensor in self.live_state().values())

    def stream(self, name: str) -> torch.Generator:
        """Return the random stream `name` of this client in this round."""
        return stream(self.task.seed, name, self.id, self.round)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of a block to `seconds[phase]`."""
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def live_state(self) -> Payload:
        """Return the state that is kept between rounds, without a copy, on the client's device."""
        return {
            **prefixed("model.", self.model.state_dict()),
            **prefixed("modules.", self.modules.state_dict()),
            **prefixed("memory.", self.memory),
        }

    def state(self) -> Payload:
        """Return a copy of the state that is kept between rounds, in main memory."""
        return copied(self.live_state())

    def load(self, state: Payload) -> None:
        """Replace the client's state by a copy of `state`."""
        self.model.load_state_dict(part(state, "model."))
        self.modules.load_state_dict(part(state, "modules."))
        memory = {name: tensor.clone() for name, tensor in part(state, "memory.").items()}
        self.memory = moved(memory, self.device)


@dataclass(frozen=True)
class Recipient:
    """The server's knowledge of a client that receives a download."""

    id: int
    classes: Tensor | None = None
    """Class mask of its uploads, if uploads and downloads have rows per class; None before the
    first upload."""
    last_round: int = 0  # the last round in which the client trained; 0: none
    group: int = 0  # equal for clients of one architecture, if networks are sent
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of its network's tensors; empty unless `up` or `down` contains clients' networks."""


@dataclass(frozen=True)
class Upload:
    """An accepted upload of a client in a round."""

    client_id: int
    num_examples: int  # training samples; 0 unless the method weights by it
    payload: Payload
    group: int = 0  # equal for clients of one architecture, if networks are sent


@dataclass(frozen=True)
class Job:
    """The work of a client in a round: train with `down` (None: do not train), then evaluate."""

    client_id: int
    round: int
    down: bytes | None
    evaluate: bool  # evaluate on its own data
    trained: int = 0  # the round whose state the client starts from; 0: initial
    max_upload: int = 0  # bytes of the largest allowed upload
    evaluate_globally: bool = False  # evaluate on all classes, if it has trained
    secure: Step | None = None  # a message of secure aggregation; without `down`, this is all


@dataclass(frozen=True)
class Reply:
    """The result of a job. `error` says why it failed; without `up` the client is unchanged."""

    client_id: int
    round: int
    num_examples: int = 0
    up: bytes | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    invalid: str | None = None  # why the answer is not valid; all other fields are then empty
    wire_bytes: int = 0  # bytes of both messages, if they travel between machines
