"""The trained clients of a run: their models and predictions, and the history of the run.

from fedgh import TrainedFederation

trained = TrainedFederation.load("runs/demo")
print(trained.history)
print(trained.clients[3].predict(images))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedgh.choices import ExportFormat
from fedgh.core.local import eval_mode, outputs
from fedgh.core.method import Method
from fedgh.core.records import RECORDED, ClientInfo
from fedgh.core.types import CPU, Client, Examples, SplitModel
from fedgh.data.own import inputs_of
from fedgh.errors import ConfigError, DataError, FedghError, RunError, unknown
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun
from fedgh.training import restore
from fedgh.training.client_spec import ClientSpec
from fedgh.training.restore import Checkpoint
from fedgh.trust import FOREIGN, Trust, how_far

if TYPE_CHECKING:
    import pandas

    from fedgh.trained.export import ExportResult
    from fedgh.trained.forget import ForgetResult


@dataclass(frozen=True)
class Inputs:
    """The shape and dtype of a client's inputs: uint8 images [c, h, w], or floats of any shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype as text: uint8 or float32."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.dtype_name} [{', '.join(['n', *map(str, self.shape)])}]"

    def check(self, x: Tensor | ArrayLike) -> Tensor:
        """Return inputs as a tensor. Raise DataError unless shape and dtype match."""
        try:
            given = inputs_of(x, self.shape[-1] if self.shape else 1)
        except DataError as error:
            why = str(error).removeprefix("data: ")
            raise DataError(f"expected {self}, got other inputs: {why}") from None
        if self.dtype == torch.float32 and not given.is_complex():
            given = given.float()
        if given.dtype != self.dtype or tuple(given.shape[1:]) != self.shape or not len(given):
            kind = str(given.dtype).removeprefix("torch.")
            raise DataError(f"expected {self}, got {kind} {list(given.shape)}")
        if not given.isfinite().all():
            raise DataError("some inputs are not finite")
        return given


@dataclass(frozen=True)
class LoadedClient:
    """A client with its trained model, and the run and round that it comes from."""

    client: Client
    method: Method  # that trained it
    fingerprint: str  # of the run
    round: int  # the last round of training

    @classmethod
    def ready(cls, client: Client, method: Method, fingerprint: str, round: int) -> "LoadedClient":
        """Return a client whose networks are on the CPU and in eval mode."""
        client.to(CPU)
        eval_mode(client)
        return cls(client, method, fingerprint, round)


class TrainedClient:
    """A client with a trained model: its name, network and classes, and its predictions."""

    def __init__(
        self,
        about: ClientInfo,
        class_names: Sequence[str],
        accuracy: float | None,
        load: Callable[[], LoadedClient],
    ) -> None:
        self.number = about.client
        self.name = about.name or ""
        self.network = about.extractor  # the name of its extractor
        self.classes = list(about.classes)  # the classes of its samples
        self.class_names = tuple(class_names)  # of the federation, in the order of the logits
        self.accuracy = accuracy  # on its own test split, at its last evaluation
        self._load = load

    def __repr__(self) -> str:
        return f"<client {f'{self.number} {self.name}'.strip()}: {self.network}>"

    @cached_property
    def loaded(self) -> LoadedClient:
        """The client, with the tensors and networks that its method keeps beside the model."""
        return self._load()

    @property
    def model(self) -> SplitModel:
        """Its network in eval mode, for inputs made by `fedgh.core.batches.to_input`."""
        return self.loaded.client.model

    @property
    def inputs(self) -> Inputs:
        """The shape and dtype of its inputs."""
        x = self.loaded.client.data.train.x
        return Inputs(tuple(x.shape[1:]), x.dtype)

    def logits(self, x: Tensor | ArrayLike) -> Tensor:
        """Return the logits of its method, [n, classes]. Raise DataError for unsuitable inputs."""
        return logits_of(self.loaded.client, self.loaded.method, self.inputs.check(x))

    def probabilities(self, x: Tensor | ArrayLike) -> Tensor:
        """Return the probability of each class, [n, classes]."""
        return self.logits(x).softmax(1)

    def predict(self, x: Tensor | ArrayLike) -> list[str]:
        """Return the name of the predicted class of each input."""
        return [self.class_names[label] for label in self.logits(x).argmax(1).tolist()]

    def export(
        self,
        path: str | Path,
        format: ExportFormat,  # noqa: A002
    ) -> "ExportResult":
        """Write its model to a file for other programs; see `fedgh.trained.export`."""
        from fedgh.trained.export import export  # imported here, since it imports this module

        return export(self, Path(path), format)


def logits_of(client: Client, method: Method, x: Tensor) -> Tensor:
    """Return the logits of a client for checked inputs, computed as in its evaluation."""
    rows = torch.arange(len(x))
    return outputs(client, partial(method.logits, client), Examples(x, rows, rows)).clone()


class Clients(Sequence[TrainedClient]):
    """The clients of a run, by number or by name; each is loaded when it is first used."""

    def __init__(self, clients: Sequence[TrainedClient]) -> None:
        self._clients = clients
        self._numbers = {client.name: client.number for client in clients if client.name}

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        return repr(list(self._clients))

    @overload
    def __getitem__(self, key: int | str) -> TrainedClient: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[TrainedClient]: ...
    def __getitem__(self, key: int | str | slice) -> TrainedClient | Sequence[TrainedClient]:
        if isinstance(key, str):
            return self._clients[self._number(key)]
        try:
            return self._clients[key]
        except IndexError:  # also ends iteration over the clients
            raise NoSuchClientError(self._known(key)) from None

    def _number(self, key: str) -> int:
        if key in self._numbers:
            return self._numbers[key]
        if self._numbers and not key.isdecimal():
            raise ConfigError(unknown("client", key, self._numbers))
        if not key.isdecimal() or int(key) >= len(self):
            raise ConfigError(self._known(key))
        return int(key)

    def _known(self, key: object) -> str:
        return f"there is no client {key}; they are 0 to {len(self) - 1}"


class NoSuchClientError(ConfigError, IndexError):
    """The number does not belong to a client."""


class TrainedFederation:
    """A run and its trained models, which are read when they are first used."""

    def __init__(
        self,
        folder: RunFolder,
        load: Callable[[], Checkpoint] | None = None,
        trust: Trust = FOREIGN,
    ) -> None:
        self.folder = folder
        self._load = load or partial(restore.load, folder, trust=trust)
        self.trust = trust  # what its configuration may name
        self._files = NamedRun(folder.path.name, folder)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        data: bool = False,
        clients: Sequence[ClientSpec] | None = None,
        trust: bool = False,
    ) -> "TrainedFederation":
        """Load a run from its folder; no other files are needed.

        With `data` its clients have their data, if these are on this machine. The run of a
        `Federation` needs its `clients` again, for their networks; their data do not matter.
        `trust` allows its configuration to name code to import and files to open.
        """
        folder = RunFolder(Path(path))
        folder.check_exists()
        level = how_far(trust)
        if not data:
            models = partial(restore.load_models, folder, clients, trust=level)
            return cls(folder, models, level)

        def load() -> Checkpoint:
            try:
                return restore.load(folder, trust=level)
            except FedghError:  # load_models raises again if the folder itself is wrong
                return restore.load_models(folder, clients, trust=level)

        return cls(folder, load, level)

    def __repr__(self) -> str:
        return f"<{len(self.clients)} clients of {self.folder.path}>"

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The clients after the last committed round."""
        return self._load()

    @cached_property
    def clients(self) -> Clients:
        """The clients of the run, by number or name."""
        infos, files = self._files.clients, self._files
        in_order = all(info.client == number for number, info in enumerate(infos))
        if not in_order or len(infos) != files.settings.federation.clients:
            raise RunError(f"{self.folder.path / 'clients.json'} is not what a run writes")
        scores = files.accuracies
        return Clients(
            [
                TrainedClient(
                    info,
                    self.class_names,
                    scores.get(info.client),
                    partial(self._client, info.client),
                )
                for info in infos
            ]
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes."""
        return tuple(self._files.identity.classes)

    def _client(self, number: int) -> LoadedClient:
        checkpoint = self.checkpoint
        if number not in checkpoint.took_part:
            raise RunError(
                f"client {number} took part in none of the {checkpoint.round} rounds: it has no "
                "trained model"
            )
        return LoadedClient.ready(
            checkpoint.client(number),
            checkpoint.blueprint.method,
            self.folder.identity().fingerprint,
            checkpoint.round,
        )

    def forget(self, key: int | str) -> "ForgetResult":
        """Remove a client from the run exactly, if the method can; see `fedgh.trained.forget`."""
        from fedgh.trained.forget import forget

        result = forget(self.folder, self.clients[key].number, checkpoint=self.checkpoint)
        del self.checkpoint, self.clients  # read again when they are next used
        return result

    @property
    def history(self) -> "pandas.DataFrame":
        """One row per round; NaN for metrics that were not measured in a round."""
        import pandas as pd  # slow to import, and only needed here

        rounds = self._files.rounds
        fields = ("train_loss", "bytes_up", "bytes_down", "bytes_total")
        return pd.DataFrame(
            {
                "round": [round.round for round in rounds],
                **{name: [round.scores.get(name) for round in rounds] for name in RECORDED},
                **{name: [getattr(round, name) for round in rounds] for name in fields},
                "seconds": [round.seconds["total"] for round in rounds],
                "participants": [len(round.participants) for round in rounds],
                "failed": [len(round.failed) for round in rounds],
                "rejected": [len(round.rejected) for round in rounds],
            }
        ).astype(dict.fromkeys((*RECORDED, "train_loss"), float))  # also if no round has a value
