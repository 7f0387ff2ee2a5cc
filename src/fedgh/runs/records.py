"""What the files of a run folder hold, as types. `docs/run-folder.md` describes them.

Nothing in a run folder is taken on trust: what is read from one is checked against these.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedgh.core.metrics import METRICS, SPREADS
from fedgh.errors import RunError

FORMAT_VERSION = 1
"""Of run folders. A fedgh that writes others refuses these, and says so."""

T = TypeVar("T")
Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]

MAX_CLASSES = 10_000
"""Classes of a run that is shown: each has a place in tables and charts."""

Seconds = Annotated[float, Field(ge=0, le=1e12)]

RECORDED = (*METRICS, *(f"accuracy_{name}" for name in SPREADS))
"""Numbers of a round that a summary has of the last one, where it measured them."""


class Checked(BaseModel):
    """Values of a file, which cannot be changed and are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Identity(Checked):
    """data.json: which run it is, and which data it was started with."""

    format_version: int = FORMAT_VERSION
    run: str = ""  # drawn when the run begins; its states carry it
    versions: dict[str, str] = {}  # of the packages with which it was begun
    name: str  # of the data
    samples: Count = 0
    classes: Annotated[list[str], Field(max_length=MAX_CLASSES)]
    shape: list[int] = []  # of an input; empty when clients have inputs of different shapes
    dtype: str = ""  # of an input
    fingerprint: str  # of the data and the settings


class Problem(Checked):
    """A client that failed, or whose upload was rejected."""

    client: int
    reason: str


class LeftOut(Checked):
    """Class means of a client that were left out because they disagreed with the others'."""

    client: int
    classes: list[int]


class Round(Checked):
    """A line of rounds.jsonl: what is read of it."""

    round: int
    participants: list[int]
    scores: dict[str, float | None]  # by metric: the mean over clients; None: not measured
    per_client: dict[str, list[float | None] | None]  # by metric
    train_loss: float | None
    bytes_up: Bytes
    bytes_down: Bytes
    bytes_total: Bytes
    wire_bytes: Bytes = 0
    failed: list[Problem]
    rejected: list[Problem]
    discarded: str | None = None
    dropped: list[LeftOut] = []
    set_aside: list[int] = []
    seconds: dict[str, Seconds]
    epsilon: float | None = None  # the highest of all clients so far, where uploads are private

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, record: Any) -> Any:
        """The scores, which are single keys of the record, by metric."""
        if not isinstance(record, dict) or "accuracy" not in record:
            return record  # which is refused, with the first thing that it lacks
        return {
            **record,
            "scores": {name: record.get(name) for name in RECORDED},
            "per_client": {name: record.get(f"{name}_per_client") for name in METRICS},
        }

    @model_validator(mode="after")
    def _whole(self) -> "Round":
        if "total" not in self.seconds:
            raise ValueError("seconds has no total")
        for name, scores in self.per_client.items():
            if self.scores[name] is not None and scores is None:
                raise ValueError(f"{name} without {name}_per_client")
            known = [score for score in (self.scores[name], *(scores or ())) if score is not None]
            if not all(map(METRICS[name].possible, known)):
                raise ValueError(f"{name} has an impossible value")
        return self

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy of the clients on their own test data."""
        return self.scores["accuracy"]


class ClientInfo(Checked):
    """An entry of clients.json: who a client is."""

    client: int
    name: str | None = None
    extractor: str
    classes: dict[str, int]  # samples of each; empty when they are the participant's secret
    shape: list[int] = []  # of its inputs, where these differ between clients
    dtype: str = ""
    train: Count = 0  # samples in each split
    evaluation: Count = 0
    test: Count = 0

    @property
    def called(self) -> str:
        """Its number, and its name if it has one."""
        return f"{self.client} {self.name}" if self.name else str(self.client)


class Summary(Checked):
    """What is read of summary.json when runs are compared."""

    rounds: int
    target: float | None
    rounds_to_target: int | None
    bytes_to_target: int | None
    bytes_per_client_round: float
    paper_bytes_per_client_round: float | None
    finished: str
    seconds: Seconds
    versions: dict[str, str]
    machine: dict[str, str | int | None]


def checked(kind: type[T], value: object, file: object) -> T:
    """Return what a file holds as a type; RunError names what does not fit."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(f"{file} is not what a run writes: {where}: {first['msg']}") from None


def check_format(found: object, file: object) -> None:
    """Raise RunError for a run folder that another version of fedgh writes."""
    version = found.get("format_version") if isinstance(found, Mapping) else None
    if version != FORMAT_VERSION:
        raise RunError(
            f"{file} has format version {version!r}; this fedgh reads {FORMAT_VERSION}: use the "
            "fedgh that has made the run, or run it again"
        )
