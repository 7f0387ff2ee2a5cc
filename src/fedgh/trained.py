"""What a run has left, ready to use: the clients' models, and what every round said.

from fedgh import Trained

trained = Trained.load("runs/demo")
print(trained.history)
print(trained.clients[3].predict(images))
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedgh import finished
from fedgh.core.local import eval_mode, outputs
from fedgh.core.method import Method
from fedgh.core.runs import RunFolder
from fedgh.core.types import CPU, Client, Examples, SplitModel
from fedgh.data.own import inputs_of
from fedgh.errors import ConfigError, DataError, FedghError, RunError, unknown
from fedgh.finished import Checkpoint
from fedgh.report.runs import ClientInfo, NamedRun

if TYPE_CHECKING:
    import pandas

    from fedgh.export import Exported


@dataclass(frozen=True)
class Inputs:
    """What a client was trained on: bytes of images [n, c, h, w], or floats of any shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """uint8 or float32."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.dtype_name} [{', '.join(['n', *map(str, self.shape)])}]"

    def check(self, x: Tensor | ArrayLike) -> Tensor:
        """The same as a tensor; DataError when it is not such inputs."""
        try:
            given = inputs_of(x, self.shape[-1] if self.shape else 1)
        except DataError as error:
            why = str(error).removeprefix("data: ")
            raise DataError(f"expected {self}, got something else: {why}") from None
        if self.dtype == torch.float32 and not given.is_complex():
            given = given.float()
        if given.dtype != self.dtype or tuple(given.shape[1:]) != self.shape or not len(given):
            kind = str(given.dtype).removeprefix("torch.")
            raise DataError(f"expected {self}, got {kind} {list(given.shape)}")
        if not given.isfinite().all():
            raise DataError("some inputs are not finite")
        return given


@dataclass(frozen=True)
class Origin:
    """Where a model is from."""

    fingerprint: str  # of the run
    round: int  # after which it is


class UsableClient(ABC):
    """A client whose model is trained: who it is, and what its model says."""

    number: int

    @property
    @abstractmethod
    def network(self) -> str:
        """The name of its network."""

    @property
    @abstractmethod
    def classes(self) -> list[str]:
        """The names of the classes that it has samples of."""

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes of the federation, in the order of the logits."""

    @property
    @abstractmethod
    def accuracy(self) -> float | None:
        """On its own test data, when it was last judged."""

    @property
    @abstractmethod
    def client(self) -> Client:
        """The client itself, with whatever its method keeps beside the model."""

    @property
    @abstractmethod
    def method(self) -> Method:
        """By which it was trained."""

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """Where its model is from."""

    @property
    def model(self) -> SplitModel:
        """Its network, in eval mode. It takes what `fedgh.data.batches.to_input` makes."""
        return self.client.model

    @property
    def inputs(self) -> Inputs:
        """What it was trained on."""
        x = self.client.data.train.x
        return Inputs(tuple(x.shape[1:]), x.dtype)

    def logits(self, x: Tensor | ArrayLike) -> Tensor:
        """The logits by which its method judges, [n, classes], of inputs as it was trained on."""
        given = self.inputs.check(x)
        rows = torch.arange(len(given))
        predict = partial(self.method.predict, self.client)
        return outputs(self.client, predict, Examples(given, rows, rows)).clone()

    def probabilities(self, x: Tensor | ArrayLike) -> Tensor:
        """How sure it is of each class, [n, classes]."""
        return self.logits(x).softmax(1)

    def predict(self, x: Tensor | ArrayLike) -> list[str]:
        """The name of the class that it takes each input for."""
        return [self.class_names[label] for label in self.logits(x).argmax(1).tolist()]

    def export(self, path: str | Path, format: str) -> "Exported":  # noqa: A002
        """Write its model as `safetensors`, `onnx` or `torch-export`; see `fedgh.export`."""
        from fedgh.export import export  # it builds on this module

        return export(self, Path(path), format)


class TrainedClient(UsableClient):
    """A client after the last round of its run."""

    def __init__(self, run: "Trained", number: int) -> None:
        self.run = run
        self.number = number

    def __repr__(self) -> str:
        return f"<client {self.number} of {self.run.folder.path}: {self.network}>"

    @property
    def network(self) -> str:
        """The name of its network."""
        return self._about.extractor

    @property
    def classes(self) -> list[str]:
        """The names of the classes that it has samples of."""
        return list(self._about.classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes of the federation, in the order of the logits."""
        return self.run.class_names

    @property
    def accuracy(self) -> float | None:
        """On its own test data, when it was last judged."""
        return self.run.accuracies.get(self.number)

    @property
    def method(self) -> Method:
        """By which it was trained."""
        return self.run.left.blueprint.method

    @property
    def origin(self) -> Origin:
        """Where its model is from."""
        return Origin(self.run.folder.identity()["fingerprint"], self.run.left.round)

    @cached_property
    def client(self) -> Client:
        """The client itself, with whatever its method keeps beside the model."""
        left = self.run.left
        if self.number not in left.took_part:
            raise RunError(
                f"client {self.number} took part in none of the {left.round} rounds: it has no "
                "trained model"
            )
        client = left.client(self.number)
        client.to(CPU)
        eval_mode(client)
        return client

    @property
    def _about(self) -> ClientInfo:
        return self.run.infos[self.number]


class Clients:
    """The clients of a run, by number or by name; each is loaded when it is first used."""

    def __init__(self, run: "Trained") -> None:
        self._run = run
        self._made: dict[int, TrainedClient] = {}

    def __len__(self) -> int:
        return len(self._run.infos)

    def __iter__(self) -> Iterator[TrainedClient]:
        return (self._client(number) for number in range(len(self)))

    def __getitem__(self, key: int | str) -> TrainedClient:
        names = {info.name: number for number, info in enumerate(self._run.infos) if info.name}
        if isinstance(key, str) and key in names:
            return self._client(names[key])
        if isinstance(key, str) and not key.isdecimal() and names:
            raise ConfigError(unknown("client", key, names))
        if not str(key).isdecimal() or int(key) >= len(self):
            raise ConfigError(f"there is no client {key}; they are 0 to {len(self) - 1}")
        return self._client(int(key))

    def _client(self, number: int) -> TrainedClient:
        if number not in self._made:
            self._made[number] = TrainedClient(self._run, number)
        return self._made[number]


class Trained:
    """A run and the models that it has left."""

    def __init__(self, folder: RunFolder, left: Checkpoint) -> None:
        self.folder = folder
        self.left = left
        self._files = NamedRun(folder.path.name, folder)

    @classmethod
    def load(cls, path: str | Path, *, data: bool = False) -> "Trained":
        """A run that is there; of its files only those in its folder are needed.

        With `data` its clients have their data, too, if these are on this machine.
        """
        folder = RunFolder(Path(path))
        if data:
            try:
                return cls(folder, finished.load(folder))
            except FedghError:
                pass  # what is wrong with the folder itself is found again, and said
        return cls(folder, finished.load_models(folder))

    @cached_property
    def clients(self) -> Clients:
        """Its clients."""
        return Clients(self)

    def __repr__(self) -> str:
        return f"<{len(self.clients)} clients of {self.folder.path}, round {self.left.round}>"

    @cached_property
    def infos(self) -> list[ClientInfo]:
        """Who they are, in the words of clients.json."""
        found = self._files.clients
        if [info.client for info in found] != list(range(self.left.experiment.task.num_clients)):
            raise RunError(f"{self.folder.path / 'clients.json'} is not what a run writes")
        return found

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes."""
        return self.left.experiment.source.class_names

    @cached_property
    def accuracies(self) -> dict[int, float]:
        """Of every client that was judged, the last accuracy on its own test data."""
        return self._files.accuracies

    @property
    def history(self) -> "pandas.DataFrame":
        """One row per round."""
        import pandas as pd  # slow to import, and only needed here

        rounds = self._files.rounds
        scores = ("accuracy", "evaluation_accuracy", "train_loss")
        as_they_are = ("round", *scores, "bytes_up", "bytes_down", "bytes_total")
        return pd.DataFrame(
            {
                **{name: [getattr(round, name) for round in rounds] for name in as_they_are},
                "seconds": [round.seconds["total"] for round in rounds],
                "participants": [len(round.participants) for round in rounds],
                "failed": [len(round.failed) for round in rounds],
                "rejected": [len(round.rejected) for round in rounds],
            }
        ).astype(dict.fromkeys(scores, float))  # also where no round has one

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page about the run, into its folder if no other place is given."""
        from fedgh.confusion import measure
        from fedgh.report.write import write_report

        return write_report(
            [self.folder.path],
            None if out is None else Path(out),
            find_confusion=lambda folder: measure(folder, self.left),
        )
