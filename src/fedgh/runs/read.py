"""Runs as a report reads them: each under a name, its files read and checked once.

Nothing in a run folder is taken on trust: a file that is not what a run writes is a RunError, and
a configuration is read as text, so that no code it names is imported.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgh import config as configs
from fedgh.choices import Protected
from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import Record, RunFolder
from fedgh.runs.records import Checked, ClientInfo, Identity, Round, checked
from fedgh.runs.summary import so_far


class _Federation(Checked):
    clients: int
    rounds: int
    seed: int
    target: float | None = None


class _Named(Checked):
    name: str


class _Model(Checked):
    rep_dim: int = 500


class _Privacy(Checked):
    protects: Protected = "nothing"
    epsilon: float = 0.0
    delta: float = 0.0
    clip: float = 0.0
    counts: str = ""


class _Settings(Checked):
    federation: _Federation
    method: _Named
    model: _Model = _Model()
    privacy: _Privacy = _Privacy()


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
        return checked(list[Round], self.records, self.folder.path / "rounds.jsonl")

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
        return checked(list[ClientInfo], self.folder.clients(), self.folder.path / "clients.json")

    @cached_property
    def identity(self) -> Identity:
        """The name of its data, the names of the classes, the shape of an input."""
        return self.folder.identity()

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
        return checked(_Settings, self.config, self.folder.config)

    @property
    def finished(self) -> bool:
        """Whether its last round is done and summarised."""
        return (self.folder.path / "summary.json").exists()

    @cached_property
    def result(self) -> Record:
        """What has come out so far, in the terms of summary.json; after the last round, no best."""
        checked = self.records[: len(self.rounds)]
        return so_far(checked, self.settings.federation.target)


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
        RunFolder(path).check_there()
    length = 1
    while len({place.parts[-length:] for place in places}) < len(places):
        length += 1
    return [
        NamedRun("/".join(place.parts[-length:]), RunFolder(path))
        for path, place in zip(paths, places, strict=True)
    ]
