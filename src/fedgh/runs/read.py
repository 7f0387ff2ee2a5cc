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

from pydantic import ConfigDict

from fedgh import config as configs
from fedgh.choices import Protected
from fedgh.core.records import Checked, ClientInfo, Identity, Progress, Round, checked
from fedgh.defaults import REP_DIM
from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.runs.summary import so_far


class _Shown(Checked):
    """A few of the settings in a section."""

    model_config = ConfigDict(extra="ignore")


class _ShownFederation(_Shown):
    clients: int
    rounds: int
    seed: int
    target: float | None = None


class _ShownMethod(_Shown):
    name: str


class _ShownModel(_Shown):
    rep_dim: int = REP_DIM


class _ShownPrivacy(_Shown):
    protects: Protected = "nothing"
    epsilon: float = 0.0
    delta: float = 0.0
    clip: float = 0.0
    counts: str = ""


class _ShownSettings(_Shown):
    federation: _ShownFederation
    method: _ShownMethod
    model: _ShownModel = _ShownModel()
    privacy: _ShownPrivacy = _ShownPrivacy()


@dataclass(frozen=True)
class NamedRun:
    """A run, and what it is called where several are shown."""

    label: str
    folder: RunFolder

    @cached_property
    def rounds(self) -> list[Round]:
        """Its rounds so far."""
        return self.folder.records()

    @property
    def evaluated(self) -> list[Round]:
        """The rounds after which the clients were judged."""
        return [round for round in self.rounds if round.accuracy is not None]

    @property
    def accuracies(self) -> dict[int, float]:
        """The last accuracy of every client that was judged, by its number."""
        return self._last("accuracy")

    @property
    def global_accuracies(self) -> dict[int, float]:
        """The same on all classes; empty when the last evaluated round did not measure it."""
        return self._last("global_accuracy")

    def _last(self, metric: str) -> dict[int, float]:
        last = self.evaluated[-1].per_client.get(metric) if self.evaluated else None
        return {client: score for client, score in enumerate(last or []) if score is not None}

    @cached_property
    def clients(self) -> list[ClientInfo]:
        """Who takes part."""
        return self.folder.clients()

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
    def settings(self) -> _ShownSettings:
        """The few settings that are shown beside results."""
        return checked(_ShownSettings, self.config, self.folder.config)

    @property
    def finished(self) -> bool:
        """Whether its last round is done and summarised."""
        return self.folder.finished

    @cached_property
    def result(self) -> Progress:
        """Totals and latest scores after its rounds so far."""
        return so_far(self.rounds, self.settings.federation.target)

    @cached_property
    def public_bytes(self) -> int | None:
        """The cost of public data for each client, once; None before the end, or without any."""
        return self.folder.summary().public_bytes_per_client if self.finished else None


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
