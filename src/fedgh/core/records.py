"""Types of the records of a run: rounds, clients, summary, identity.

`docs/run-folder.md` describes their files. Run folders are untrusted: their files are validated
against these types.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from fedgh import renames
from fedgh.choices import Protected
from fedgh.core.metrics import METRICS, SPREADS
from fedgh.errors import RunError, first_mistake, printable
from fedgh.renames import with_current_names

FORMAT_VERSION = 3
"""Version of the run-folder format that fedgh writes."""

READABLE_VERSIONS = (1, 2, FORMAT_VERSION)
"""Versions of the format that fedgh reads: 1 has other names of keys, 2 other files of states."""

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=2**63)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]

Share = Annotated[float, Field(ge=0, le=1)]

MAX_CLASSES = 10_000
"""Classes of a run, each of which appears in tables and charts."""

Seconds = Annotated[float, Field(ge=0, le=1e12)]

RECORDED = (*METRICS, *(f"accuracy_{name}" for name in SPREADS))
"""Metrics of a round; a summary contains those of the last evaluated round."""


class Checked(BaseModel):
    """Base class of records: immutable, with finite numbers and without unknown keys."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid")


class Identity(Checked):
    """data.json: the identity of a run and its data."""

    format_version: int = FORMAT_VERSION
    run: str = ""  # random identifier of the run; its state files contain it
    versions: dict[str, str] = {}  # of packages, at the last start
    name: str  # of the data
    samples: Count = 0
    classes: Annotated[list[str], Field(max_length=MAX_CLASSES)]
    shape: list[Count] = []  # of an input; empty if shapes differ between clients
    dtype: str = ""  # of an input
    fingerprint: str  # of the data and the settings


class Problem(Checked):
    """Failure of a client, or rejection of its upload, with the reason."""

    client: Count
    reason: str


class DroppedMeans(Checked):
    """Class means of a client that the defence dropped."""

    client: Count
    classes: list[Count]


class Round(Checked):
    """A line of rounds.jsonl: a finished round.

    `scores` and `per_client` are by metric; in the file `accuracy` and `accuracy_per_client` are
    keys of the line.
    """

    round: Count
    participants: list[Count]
    scores: dict[str, float | None]  # mean over clients, and spread of accuracy; None: not measured
    per_client: dict[str, list[float | None] | None]
    train_loss: float | None
    method_metrics: dict[str, float]  # metrics that the method defines
    bytes_up: Bytes
    bytes_down: Bytes
    bytes_total: Bytes
    wire_bytes: Bytes
    rejected: list[Problem]
    discarded: str | None  # why the round did not change the server's state
    dropped: list[DroppedMeans]
    excluded: list[Count]
    forgotten: list[Count]
    failed: list[Problem]
    seconds: dict[str, Seconds]
    epsilon: float | None = None  # the highest of all clients so far, with privacy

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy of the clients on their own test data."""
        return self.scores["accuracy"]

    @property
    def accuracies(self) -> list[float | None]:
        """The accuracy of every client; empty if the round was not evaluated."""
        return self.per_client["accuracy"] or []

    @property
    def answered(self) -> list[int]:
        """The participants whose uploads were accepted."""
        lost = {problem.client for problem in (*self.failed, *self.rejected)}
        return [client for client in self.participants if client not in lost]

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, line: Any) -> Any:
        if not isinstance(line, dict) or "scores" in line:
            return line
        rest = with_current_names(line, renames.ROUND)
        scores = {name: rest.pop(name) for name in RECORDED if name in rest}
        each = {name: f"{name}_per_client" for name in METRICS}
        per_client = {name: rest.pop(key) for name, key in each.items() if key in rest}
        return rest | {"scores": scores, "per_client": per_client}

    @model_validator(mode="after")
    def _check(self) -> "Round":
        if "total" not in self.seconds:
            raise ValueError("seconds has no total")
        if "accuracy" not in self.scores or "accuracy" not in self.per_client:
            raise ValueError("no accuracy, or no accuracy_per_client")
        if not (self.scores.keys() <= {*RECORDED} and self.per_client.keys() <= METRICS.keys()):
            raise ValueError("a metric that is not known")
        for name in METRICS:
            mean, scores = self.scores.get(name), self.per_client.get(name)
            if mean is not None and scores is None:
                raise ValueError(f"{name} without {name}_per_client")
            known = [score for score in (mean, *(scores or ())) if score is not None]
            if known and not METRICS[name].possible(min(known), max(known)):
                raise ValueError(f"{name} has an impossible value")
        return self

    @model_serializer(mode="wrap")
    def _flatten(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        line: dict[str, Any] = dump(self)
        line |= line.pop("scores")
        line |= {f"{name}_per_client": known for name, known in line.pop("per_client").items()}
        return line


class ClientInfo(Checked):
    """An entry of clients.json: name, network, classes and samples of a client."""

    client: Count
    name: str | None = None
    extractor: str
    classes: dict[str, Count]  # samples of each class; empty if the client keeps them secret
    shape: list[Count] = []  # of its inputs, if shapes differ between clients
    dtype: str = ""
    train: Count = 0  # samples in each split
    validation: Count = 0
    test: Count = 0

    @property
    def called(self) -> str:
        """Its number, and its name if it has one."""
        return f"{self.client} {self.name}" if self.name else str(self.client)

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, entry: Any) -> Any:
        return with_current_names(entry, renames.CLIENT) if isinstance(entry, dict) else entry


class Progress(Checked):
    """Totals and latest scores of a run after its rounds so far."""

    rounds: Count
    evaluated_clients: Count
    final: dict[str, float | None]  # scores of the last evaluated round; `final_…` in the file
    best_accuracy: float | None  # of all rounds; selected on test data, so too high
    target: float | None
    rounds_to_target: int | None
    bytes_to_target: int | None
    bytes_total: Bytes
    wire_bytes_total: Bytes
    bytes_per_client_round: float | None
    seconds: Seconds

    @property
    def accuracy(self) -> float | None:
        """The accuracy after the last evaluated round."""
        return self.final.get("accuracy")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, content: Any) -> Any:
        if not isinstance(content, dict) or "final" in content:
            return content
        rest = with_current_names(content, renames.SUMMARY)
        names = {name: f"final_{name}" for name in RECORDED}
        return rest | {"final": {n: rest.pop(key) for n, key in names.items() if key in rest}}

    @model_serializer(mode="wrap")
    def _flatten(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = dump(self)
        final = {f"final_{name}": score for name, score in content.pop("final").items()}
        return final | content


class RequestCounts(Checked):
    """asked.json: the number of uploads requested from each client, including lost rounds."""

    run: str
    asked: dict[Count, Count]


class PrivacySpending(Checked):
    """Privacy spent by a finished run: an upper bound on what its uploads reveal."""

    protects: Protected
    epsilon: float  # the highest of all clients, over all rounds
    delta: float
    noise_multiplier: float
    epsilon_per_client: list[float]


class Summary(Progress):
    """summary.json: the result of a finished run."""

    method: str
    data: str
    seed: int
    clients: int
    paper_bytes_per_client_round: float | None
    finished: str
    versions: dict[str, str]
    machine: dict[str, str | int | None]
    privacy: PrivacySpending | None = None
    public_bytes_per_client: Bytes | None = None  # of public data, sent once to every client
    linear_accuracy: Share | None = None  # of the partition: the lower, the harder


def checked(kind: type[T], value: object, file: object) -> T:
    """Return the content of a file as a type. Raise RunError with the first mismatch."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise RunError(f"{file} is not what a run writes: {first_mistake(error)}") from None


def check_format(found: object, file: object) -> None:
    """Raise RunError for a run folder that another version of fedgh writes."""
    version = found.get("format_version") if isinstance(found, Mapping) else None
    if version not in READABLE_VERSIONS or isinstance(version, bool):
        raise RunError(
            f"{file} has format version {printable(repr(version))}; this fedgh reads "
            f"{' and '.join(map(str, READABLE_VERSIONS))}: use the version "
            "of fedgh that made the run, or run it again"
        )
