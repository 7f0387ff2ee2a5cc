"""Runs as a report reads them: each under a name, its files read and checked once.

Nothing in a run folder is taken on trust: a file that is not what a run writes is a RunError, and
a configuration is read as text, so that no code it names is imported.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedgh import config as configs
from fedgh.choices import Protected
from fedgh.core.metrics import METRICS
from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import Record, RunFolder
from fedgh.runs.summary import RECORDED, so_far

T = TypeVar("T")
Bytes = Annotated[int, Field(ge=0, lt=2**63)]

MAX_CLASSES = 10_000
"""Classes of a run that is shown: each has a place in tables and charts."""

Seconds = Annotated[float, Field(ge=0, le=1e12)]


class _Checked(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Problem(_Checked):
    """A client that failed, or whose upload was rejected."""

    client: int
    reason: str


class LeftOut(_Checked):
    """Class means of a client that were left out because they disagreed with the others'."""

    client: int
    classes: list[int]


class Round(_Checked):
    """What a report uses of a round's record."""

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
        return self

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy of the clients on their own test data."""
        return self.scores["accuracy"]


class ClientInfo(_Checked):
    """Who a client is."""

    client: int
    name: str | None = None
    extractor: str
    classes: dict[str, int]  # samples of each; empty when they are the participant's secret

    @property
    def called(self) -> str:
        """Its number, and its name if it has one."""
        return f"{self.client} {self.name}" if self.name else str(self.client)


class _Federation(_Checked):
    clients: int
    rounds: int
    seed: int
    target: float | None = None


class _Named(_Checked):
    name: str


class _Model(_Checked):
    rep_dim: int = 500


class _Privacy(_Checked):
    protects: Protected = "nothing"
    epsilon: float = 0.0
    delta: float = 0.0
    clip: float = 0.0
    counts: str = ""


class _Settings(_Checked):
    federation: _Federation
    method: _Named
    model: _Model = _Model()
    privacy: _Privacy = _Privacy()


class _Identity(_Checked):
    name: str
    classes: Annotated[list[str], Field(max_length=MAX_CLASSES)]
    shape: list[int] = []  # empty when clients have inputs of different shapes


@dataclass(frozen=True)
class NamedRun:
    """A run, and what it is called where several are shown."""

    label: str
    folder: RunFolder

    @cached_property
    def records(self) -> list[Record]:
        """Its rounds so far, as they are in the file."""
        return self.folder.records()

    @cached_property
    def rounds(self) -> list[Round]:
        """Its rounds so far."""
        return self._check(list[Round], self.records, "rounds.jsonl")

    @property
    def evaluated(self) -> list[Round]:
        """The rounds after which the clients were judged."""
        return [round for round in self.rounds if round.accuracy is not None]

    @property
    def accuracies(self) -> dict[int, float]:
        """The last accuracy of every client that was judged, by its number."""
        last = self.evaluated[-1].per_client["accuracy"] if self.evaluated else None
        return {client: score for client, score in enumerate(last or []) if score is not None}

    @property
    def global_accuracies(self) -> dict[int, float]:
        """The same on all classes; empty when the last evaluated round did not measure it."""
        last = self.evaluated[-1].per_client["global_accuracy"] if self.evaluated else None
        return {client: score for client, score in enumerate(last or []) if score is not None}

    @cached_property
    def clients(self) -> list[ClientInfo]:
        """Who takes part."""
        return self._check(list[ClientInfo], self.folder.clients(), "clients.json")

    @cached_property
    def identity(self) -> _Identity:
        """The name of its data, the names of the classes, the shape of an input."""
        return self._check(_Identity, self.folder.identity(), "data.json")

    @cached_property
    def config_text(self) -> str:
        """Its configuration as it is in the file."""
        with _as_run_error():
            return configs.config_text(self.folder.config)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its configuration as plain values, section by section."""
        with _as_run_error():
            return configs.parse_toml(self.config_text, self.folder.config)

    @cached_property
    def settings(self) -> _Settings:
        """The few settings that are shown beside results."""
        return self._check(_Settings, self.config, "config.toml")

    @property
    def finished(self) -> bool:
        """Whether its last round is done and summarised."""
        return (self.folder.path / "summary.json").exists()

    @cached_property
    def result(self) -> Record:
        """What has come out so far, in the terms of summary.json; after the last round, no best."""
        checked = self.records[: len(self.rounds)]
        return so_far(checked, self.settings.federation.target)

    def _check(self, kind: type[T], value: object, file: str) -> T:
        try:
            return TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise RunError(
                f"{self.folder.path / file} is not what a run writes: {where}: {first['msg']}"
            ) from None


@contextmanager
def _as_run_error() -> Iterator[None]:
    """A configuration that is wrong in a run folder is the folder's mistake, not the user's."""
    try:
        yield
    except ConfigError as error:
        raise RunError(str(error)) from None


def name_runs(paths: Sequence[Path]) -> list[NamedRun]:
    """The runs in these folders, each called by the end of its path that tells it apart."""
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise RunError(f"{path} is named twice")
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} is not a run folder (it has no config.toml)")
    length = 1
    while len({place.parts[-length:] for place in places}) < len(places):
        length += 1
    return [
        NamedRun("/".join(place.parts[-length:]), RunFolder(path))
        for path, place in zip(paths, places, strict=True)
    ]
