"""A newcomer: a client that joins a federation later, with its own network and data.

In rounds of its own it takes over the global header, as every participant does, but its uploads are
not sent. A second copy of the client, with the same initial weights and batches, trains alone: the
difference shows the value of the header. Only the run folder is needed. The run may be unfinished:
every round uses the newest header.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedgh import config as configs
from fedgh.config import LOCATIONS, Config
from fedgh.core import wire
from fedgh.core.local import eval_mode, evaluate
from fedgh.core.message import Shapes
from fedgh.core.method import Method
from fedgh.core.metrics import accuracy
from fedgh.core.records import ClientInfo
from fedgh.core.rng import isolated
from fedgh.core.threads import one_thread
from fedgh.core.types import Client, Payload, Recipient, Task, Upload, part
from fedgh.core.uploads import Uploads
from fedgh.data.own import source_of
from fedgh.data.partition import single
from fedgh.data.sources import Source
from fedgh.defaults import NEWCOMER_ROUNDS
from fedgh.engines.host import Blueprint
from fedgh.errors import RunError, WireError, one_line
from fedgh.files import make_folder, write_atomic
from fedgh.methods import METHODS
from fedgh.methods.standalone import Standalone
from fedgh.models import Extractor, check_extractor, extractor
from fedgh.runs.folder import RunFolder
from fedgh.trained.clients import LoadedClient, TrainedClient
from fedgh.training.client_spec import ClientSpec
from fedgh.training.experiment import check_augment
from fedgh.trust import how_far

if TYPE_CHECKING:
    import pandas

OnNewcomerRound = Callable[[int, float, float], None]
"""Function that is called with the round, the accuracy with the header and that without."""


@dataclass(frozen=True)
class NewcomerResult:
    """The accuracies of a newcomer on its own test split: entry k after k rounds, 0 before all."""

    client: TrainedClient = field(repr=False)  # the one that trained with the header
    others: float  # the mean accuracy of the federation's clients
    epochs_per_round: int
    with_header: list[float]
    without_header: list[float]

    @property
    def epochs_with(self) -> int | None:
        """The epochs until its accuracy with the header reaches that of the others; None: never."""
        return self._epochs_until(self.with_header)

    @property
    def epochs_without(self) -> int | None:
        """The epochs until its accuracy without the header reaches the others'; None: never."""
        return self._epochs_until(self.without_header)

    @property
    def history(self) -> "pandas.DataFrame":
        """The accuracies, one row per round."""
        import pandas as pd  # slow to import, and only needed here

        return pd.DataFrame(
            {
                "epochs": [self.epochs_per_round * k for k in range(len(self.with_header))],
                "with_header": self.with_header,
                "without_header": self.without_header,
            }
        )

    def _epochs_until(self, curve: Sequence[float]) -> int | None:
        reached = (k for k, score in enumerate(curve) if score >= self.others)
        first = next(reached, None)
        return None if first is None else first * self.epochs_per_round


def join(
    run: RunFolder | Path | str,
    newcomer: ClientSpec,
    rounds: int = NEWCOMER_ROUNDS,
    on_round: OnNewcomerRound = lambda *_: None,
    *,
    trust: bool = False,
) -> NewcomerResult:
    """Train a newcomer for `rounds` rounds, with the global header of a run and without.

    `trust` allows the configuration of the run to name a method outside fedgh. Raise FedghError if
    the run has no header for newcomers, or if the network fails.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(Path(run))
    config, classes = _config(folder, trust), folder.identity().classes
    if config.method.public_for != "none":
        raise RunError(
            f"{folder.path}: {config.method.name} needs public data; newcomers are not supported "
            "for such methods"
        )
    data = newcomer.source(classes)
    task = Task(
        num_classes=len(classes),
        rep_dim=config.model.rep_dim,
        num_clients=config.federation.clients + 1,
        rounds=rounds,
        seed=config.federation.seed,
        input_shape=data.shape,
    )
    others = _accuracy_of_the_others(folder)
    check_augment(config.local, data)
    network = newcomer.extractor(data.shape, task.num_classes, task.rep_dim)
    with_header, alone = (
        _client(config, method, task, data, network) for method in (config.method, Standalone())
    )
    uploads: list[Upload] = []  # of the newcomer; they are not sent
    with one_thread():
        scores = [_score(config.method, with_header)], [_score(Standalone(), alone)]
        for round in range(1, rounds + 1):
            down = _download(folder, config, with_header, uploads)
            uploads.append(_train(config.method, with_header, round, down))
            _train(Standalone(), alone, round, {})
            scores[0].append(_score(config.method, with_header))
            scores[1].append(_score(Standalone(), alone))
            on_round(round, scores[0][-1], scores[1][-1])
    counts = data.y.bincount(minlength=len(classes)).tolist()
    info = ClientInfo(
        client=with_header.id,
        name=newcomer.name,
        extractor=network.name,
        classes={name: n for name, n in zip(classes, counts, strict=True) if n},
    )
    loaded = LoadedClient(with_header, config.method, folder.identity().fingerprint, rounds)
    client = TrainedClient(info, classes, scores[0][-1], lambda: loaded)
    return NewcomerResult(client, others, config.local.epochs, *scores)


def newcomer(
    folder: RunFolder, network: str, data: Path, image_size: int, *, trust: bool = False
) -> ClientSpec:
    """Return a newcomer with a network of a known name, and data from a folder or file."""
    config = _config(folder, trust)
    classes = folder.identity().classes
    source = source_of(data, classes, image_size)
    make, width = extractor(network), config.model.rep_dim
    task = Task(len(classes), width, 1, 1, config.federation.seed, source.shape)
    check_extractor(network, make, task)
    with isolated(config.federation.seed, "newcomer"):
        extractor_network = make(source.shape, width)
    return ClientSpec(extractor_network, source, name=network)


def save(result: NewcomerResult, folder: Path) -> list[Path]:
    """Write the newcomer's model and its accuracies; return the files."""
    make_folder(folder)
    numbers = folder / "newcomer.json"
    content = {
        "others": result.others,
        "epochs_per_round": result.epochs_per_round,
        "epochs_with_header": result.epochs_with,
        "epochs_without_header": result.epochs_without,
        "with_header": result.with_header,
        "without_header": result.without_header,
    }
    write_atomic(numbers, json.dumps(content, indent=1).encode() + b"\n")
    return [_export(result.client, folder), numbers]


def _export(client: TrainedClient, folder: Path) -> Path:
    """Write the model as safetensors, or as torch-export if it is more than one network."""
    try:
        return client.export(folder / "model.safetensors", "safetensors").path
    except RunError:
        return client.export(folder / "model.pt2", "torch-export").path


def _config(folder: RunFolder, trust: bool) -> Config:
    """Return the settings of a run without its networks and locations of data."""
    return configs.load_run(
        folder.config,
        trust=how_far(trust),
        ignoring=(*LOCATIONS, "model.extractors"),
    )


def _client(config: Config, method: Method, task: Task, data: Source, network: Extractor) -> Client:
    """Return the newcomer, numbered after all other clients."""
    number = task.num_clients - 1
    blueprint = Blueprint(
        task=task,
        method=method,
        local=config.local,
        extractors=(network,),
        sources=(data,),
        partition=single(number, task.num_clients, data.y.numpy(), task.seed),
    )
    return blueprint.make(number)


def _train(method: Method, client: Client, round: int, down: Payload) -> Upload:
    """Run a round of the newcomer; return its upload. Raise RunError if it fails."""
    client.round = round
    eval_mode(client)
    try:
        with isolated(client.task.seed, "client", client.id, round):
            return Upload(client.id, len(client.data.train), method.client_update(client, down))
    except Exception as problem:  # a user's network may raise anything
        raise RunError(f"the newcomer failed in round {round}: {one_line(problem)}") from None


def _score(method: Method, client: Client) -> float:
    try:
        return accuracy(evaluate(client, method.logits, client.data.test))
    except Exception as problem:  # a user's network may raise anything
        raise RunError(f"the newcomer cannot be evaluated: {one_line(problem)}") from None


def _download(folder: RunFolder, config: Config, client: Client, uploads: list[Upload]) -> Payload:
    """Return the download that the server of the run would send to a newcomer now.

    If the method only adds up statistics, the newcomer's are added here, so that the header
    includes its data. Raise RunError if the method has no header for newcomers.
    """
    method, (_, state) = config.method, folder.committed()
    if not method.accepts_newcomers:
        others = ", ".join(name for name, kind in METHODS.items() if kind().accepts_newcomers)
        raise RunError(
            f"{folder.path}: the server of {method.name} has no global header that a newcomer "
            f"could take over; the servers of these methods have one: {others}"
        )
    server = method.enlarged(part(state, "server."))
    if method.releases_once and uploads:
        server = method.server_update(server, Uploads(uploads[:1], client.task, client.round))
    down = method.broadcast(server, Recipient(client.id))
    try:
        return wire.read(wire.to_bytes(down), method.download_specs(Shapes.of(client)))
    except WireError as error:
        raise RunError(f"{folder.path} does not fit its configuration: {error}") from None


def _accuracy_of_the_others(folder: RunFolder) -> float:
    accuracies = [r.accuracy for r in folder.records() if r.accuracy is not None]
    if not accuracies:
        raise RunError(f"{folder.path}: no client has been evaluated yet")
    return float(accuracies[-1])
