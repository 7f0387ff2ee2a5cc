"""What a run has left, ready to use: the clients' models, and what every round said.

from fedgh import Trained

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
class LoadedClient:
    """A client with its model, and where that is from."""

    client: Client
    method: Method  # by which it was trained
    fingerprint: str  # of the run
    round: int  # after which it is


class TrainedClient:
    """A client whose model is trained: who it is, and what its model says."""

    def __init__(
        self,
        about: ClientInfo,
        class_names: Sequence[str],
        accuracy: float | None,
        load: Callable[[], LoadedClient],
    ) -> None:
        self.number = about.client
        self.name = about.name or ""
        self.network = about.extractor  # its name
        self.classes = list(about.classes)  # of which it has samples
        self.class_names = tuple(class_names)  # of the federation, in the order of the logits
        self.accuracy = accuracy  # on its own test data, when it was last judged
        self._load = load

    def __repr__(self) -> str:
        return f"<client {f'{self.number} {self.name}'.strip()}: {self.network}>"

    @cached_property
    def loaded(self) -> LoadedClient:
        """The client itself, with whatever its method keeps beside the model."""
        return self._load()

    @property
    def model(self) -> SplitModel:
        """Its network, in eval mode. It takes what `fedgh.core.batches.to_input` makes."""
        return self.loaded.client.model

    @property
    def inputs(self) -> Inputs:
        """What it was trained on."""
        x = self.loaded.client.data.train.x
        return Inputs(tuple(x.shape[1:]), x.dtype)

    def logits(self, x: Tensor | ArrayLike) -> Tensor:
        """The logits by which its method judges, [n, classes], of inputs as it was trained on."""
        given = self.inputs.check(x)
        rows = torch.arange(len(given))
        client, method = self.loaded.client, self.loaded.method
        return outputs(client, partial(method.logits, client), Examples(given, rows, rows)).clone()

    def probabilities(self, x: Tensor | ArrayLike) -> Tensor:
        """How sure it is of each class, [n, classes]."""
        return self.logits(x).softmax(1)

    def predict(self, x: Tensor | ArrayLike) -> list[str]:
        """The name of the class that it takes each input for."""
        return [self.class_names[label] for label in self.logits(x).argmax(1).tolist()]

    def export(
        self,
        path: str | Path,
        format: ExportFormat,  # noqa: A002
    ) -> "ExportResult":
        """Write its model to a file for other programs; see `fedgh.trained.export`."""
        from fedgh.trained.export import export  # it builds on this module

        return export(self, Path(path), format)


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
        except IndexError:  # also what ends a loop
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
    """A number that no client has."""


class TrainedFederation:
    """A run and the models that it has left; these are read when they are first used."""

    def __init__(
        self,
        folder: RunFolder,
        load: Callable[[], Checkpoint] | None = None,
        trust: Trust = FOREIGN,
    ) -> None:
        self.folder = folder
        self._load = load or partial(restore.load, folder, trust=trust)
        self.trust = trust  # how far the names in its configuration are followed
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
        """A run that is there; of its files only those in its folder are needed.

        With `data` its clients have their data, too, if these are on this machine. A run of a
        `Federation` needs its clients again: they hold the networks. Their data do not matter.
        `trust` allows its configuration to name code to import and files to open.
        """
        folder = RunFolder(Path(path))
        folder.check_exists()
        far = how_far(trust)
        if not data:
            models = partial(restore.load_models, folder, clients, trust=far)
            return cls(folder, models, far)

        def load() -> Checkpoint:
            try:
                return restore.load(folder, trust=far)
            except FedghError:  # what is wrong with the folder itself is found again, and said
                return restore.load_models(folder, clients, trust=far)

        return cls(folder, load, far)

    def __repr__(self) -> str:
        return f"<{len(self.clients)} clients of {self.folder.path}>"

    @cached_property
    def left(self) -> Checkpoint:
        """The models after the last round."""
        return self._load()

    @cached_property
    def clients(self) -> Clients:
        """Its clients."""
        found, files = self._files.clients, self._files
        in_order = all(info.client == number for number, info in enumerate(found))
        if not in_order or len(found) != files.settings.federation.clients:
            raise RunError(f"{self.folder.path / 'clients.json'} is not what a run writes")
        scores = files.accuracies
        return Clients(
            [
                TrainedClient(
                    about,
                    self.class_names,
                    scores.get(about.client),
                    partial(self._client, about.client),
                )
                for about in found
            ]
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes."""
        return tuple(self._files.identity.classes)

    def _client(self, number: int) -> LoadedClient:
        left = self.left
        if number not in left.took_part:
            raise RunError(
                f"client {number} took part in none of the {left.round} rounds: it has no "
                "trained model"
            )
        client = left.client(number)
        client.to(CPU)
        eval_mode(client)
        fingerprint = self.folder.identity().fingerprint
        return LoadedClient(client, left.blueprint.method, fingerprint, left.round)

    def forget(self, key: int | str) -> "ForgetResult":
        """Take a client out of the run exactly, if its method can; see `fedgh.trained.forget`."""
        from fedgh.trained.forget import forget

        done = forget(self.folder, self.clients[key].number, left=self.left)
        del self.left, self.clients  # they are read anew
        return done

    @property
    def history(self) -> "pandas.DataFrame":
        """One row per round; a score that was not taken in a round is not a number."""
        import pandas as pd  # slow to import, and only needed here

        rounds = self._files.rounds
        as_they_are = ("train_loss", "bytes_up", "bytes_down", "bytes_total")
        return pd.DataFrame(
            {
                "round": [round.round for round in rounds],
                **{name: [round.scores.get(name) for round in rounds] for name in RECORDED},
                **{name: [getattr(round, name) for round in rounds] for name in as_they_are},
                "seconds": [round.seconds["total"] for round in rounds],
                "participants": [len(round.participants) for round in rounds],
                "failed": [len(round.failed) for round in rounds],
                "rejected": [len(round.rejected) for round in rounds],
            }
        ).astype(dict.fromkeys((*RECORDED, "train_loss"), float))  # also where no round has one
