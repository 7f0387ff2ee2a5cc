"""Runs as reports read them: each has a label, and its files are read and validated once.

The contents of a run folder are untrusted: a file that no run would have written raises RunError,
and the configuration is read as text, so that no code that it names is imported.
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
from fedgh.runs.summary import progress


class _Shown(Checked):
    """The settings of one section that reports show; others are ignored."""

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
    """A run with the label under which a report shows it."""

    label: str
    folder: RunFolder

    @cached_property
    def rounds(self) -> list[Round]:
        """The records of its rounds so far."""
        return self.folder.records()

    @property
    def evaluated(self) -> list[Round]:
        """The records of the rounds in which clients were evaluated."""
        return [round for round in self.rounds if round.accuracy is not None]

    @property
    def accuracies(self) -> dict[int, float]:
        """The last accuracy of each evaluated client, by client number."""
        return self._last("accuracy")

    @property
    def global_accuracies(self) -> dict[int, float]:
        """The last global accuracy of each client; empty if the last evaluation has none."""
        return self._last("global_accuracy")

    def _last(self, metric: str) -> dict[int, float]:
        last = self.evaluated[-1].per_client.get(metric) if self.evaluated else None
        return {client: score for client, score in enumerate(last or []) if score is not None}

    @cached_property
    def clients(self) -> list[ClientInfo]:
        """The clients of the run."""
        return self.folder.clients()

    @cached_property
    def identity(self) -> Identity:
        """The name of the data, the names of the classes and the shape of an input."""
        return self.folder.identity()

    @cached_property
    def config_text(self) -> str:
        """The text of config.toml."""
        with _as_run_error():
            return configs.config_text(self.folder.config)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration as plain values, section by section."""
        with _as_run_error():
            return configs.parse_toml(self.config_text, self.folder.config)

    @cached_property
    def settings(self) -> _ShownSettings:
        """The settings that reports show beside results."""
        return checked(_ShownSettings, self.config, self.folder.config)

    @property
    def finished(self) -> bool:
        """True if the run is finished: it has a summary."""
        return self.folder.finished

    @cached_property
    def result(self) -> Progress:
        """Totals and latest scores after the rounds so far."""
        return progress(self.rounds, self.settings.federation.target)

    @cached_property
    def public_bytes(self) -> int | None:
        """Bytes of public data that each client gets once; None before the end or without any."""
        return self.folder.summary().public_bytes_per_client if self.finished else None


@contextmanager
def _as_run_error() -> Iterator[None]:
    """Turn a ConfigError into a RunError: the run folder is at fault, not the user's input."""
    try:
        yield
    except ConfigError as error:
        raise RunError(str(error)) from None


def name_runs(paths: Sequence[Path]) -> list[NamedRun]:
    """Return the runs in these folders, each labelled by the shortest distinct end of its path.

    Raise RunError if a folder is given twice or is not a run folder.
    """
    resolved = [path.resolve() for path in paths]
    for path, full in zip(paths, resolved, strict=True):
        if resolved.count(full) > 1:
            raise RunError(f"{path} is given twice; name each run folder once")
        RunFolder(path).check_exists()
    length = 1
    while len({full.parts[-length:] for full in resolved}) < len(resolved):
        length += 1
    return [
        NamedRun("/".join(full.parts[-length:]), RunFolder(path))
        for path, full in zip(paths, resolved, strict=True)
    ]
