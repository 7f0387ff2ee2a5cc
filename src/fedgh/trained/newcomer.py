"""A newcomer: a client that joins a federation later, with its own network and data.

It takes the global header as every participant does, in rounds of its own; what it would upload
stays with it. Beside it the same client, with the same first weights and the same batches, learns
alone: the difference is what the header is worth. Only the run folder is needed, of a run that is
finished or goes on: every round takes the newest header.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedgh import config as configs
from fedgh.config import PLACES, Config
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
from fedgh.data.partition import only
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
"""Told the round, and the accuracy with the header and without."""


@dataclass(frozen=True)
class NewcomerResult:
    """How a newcomer did on its own test data: entry k is after k rounds, entry 0 before all."""

    client: TrainedClient = field(repr=False)  # that learned with the header
    others: float  # the mean accuracy of the clients of the federation
    epochs_per_round: int
    with_header: list[float]
    without_header: list[float]

    @property
    def epochs_with(self) -> int | None:
        """The epochs of local training after which it does as well as the others; None: never."""
        return self._epochs_until(self.with_header)

    @property
    def epochs_without(self) -> int | None:
        """The same for the client that learned alone."""
        return self._epochs_until(self.without_header)

    @property
    def history(self) -> "pandas.DataFrame":
        """One row per round."""
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
    """Let a newcomer learn for so many rounds, with the global header of a run and without.

    `trust` allows the configuration of the run to name a method outside fedgh.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(Path(run))
    config, classes = _config(folder, trust), folder.identity().classes
    if config.method.public_for != "none":
        raise RunError(
            f"{folder.path}: {config.method.name} needs public data, with which newcomers cannot "
            "be tried"
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
    taught, alone = (
        _client(config, method, task, data, network) for method in (config.method, Standalone())
    )
    sent: list[Upload] = []  # what the newcomer would have sent
    with one_thread():
        scores = [_score(config.method, taught)], [_score(Standalone(), alone)]
        for round in range(1, rounds + 1):
            down = _broadcast(folder, config, taught, sent)
            sent.append(_learn(config.method, taught, round, down))
            _learn(Standalone(), alone, round, {})
            scores[0].append(_score(config.method, taught))
            scores[1].append(_score(Standalone(), alone))
            on_round(round, scores[0][-1], scores[1][-1])
    held = data.y.bincount(minlength=len(classes)).tolist()
    about = ClientInfo(
        client=taught.id,
        name=newcomer.name,
        extractor=network.name,
        classes={name: n for name, n in zip(classes, held, strict=True) if n},
    )
    loaded = LoadedClient(taught, config.method, folder.identity().fingerprint, rounds)
    client = TrainedClient(about, classes, scores[0][-1], lambda: loaded)
    return NewcomerResult(client, others, config.local.epochs, *scores)


def newcomer(
    folder: RunFolder, network: str, data: Path, image_size: int, *, trust: bool = False
) -> ClientSpec:
    """A newcomer with a network that is known by name, and data from a folder or file."""
    config = _config(folder, trust)
    classes = folder.identity().classes
    source = source_of(data, classes, image_size)
    make, width = extractor(network), config.model.rep_dim
    task = Task(len(classes), width, 1, 1, config.federation.seed, source.shape)
    check_extractor(network, make, task)
    with isolated(config.federation.seed, "newcomer"):
        made = make(source.shape, width)
    return ClientSpec(made, source, name=network)


def keep(joined: NewcomerResult, folder: Path) -> list[Path]:
    """Write the newcomer's model and how it did; returns the files."""
    make_folder(folder)
    model, numbers = folder / "model.safetensors", folder / "newcomer.json"
    joined.client.export(model, "safetensors")
    words = {
        "others": joined.others,
        "epochs_per_round": joined.epochs_per_round,
        "epochs_with_header": joined.epochs_with,
        "epochs_without_header": joined.epochs_without,
        "with_header": joined.with_header,
        "without_header": joined.without_header,
    }
    write_atomic(numbers, json.dumps(words, indent=1).encode() + b"\n")
    return [model, numbers]


def _config(folder: RunFolder, trust: bool) -> Config:
    """The settings of a run that matter to a newcomer: neither its networks nor its data do."""
    return configs.load_run(
        folder.config,
        trust=how_far(trust),
        ignoring=(*PLACES, "model.extractors"),
    )


def _client(config: Config, method: Method, task: Task, data: Source, network: Extractor) -> Client:
    """The client that comes after all others."""
    number = task.num_clients - 1
    blueprint = Blueprint(
        task=task,
        method=method,
        local=config.local,
        extractors=(network,),
        sources=(data,),
        partition=only(number, task.num_clients, data.y.numpy(), task.seed),
    )
    return blueprint.make(number)


def _learn(method: Method, client: Client, round: int, down: Payload) -> Upload:
    """A round as any participant's; returns what it would send."""
    client.round = round
    eval_mode(client)
    try:
        with isolated(client.task.seed, "client", client.id, round):
            return Upload(client.id, len(client.data.train), method.client_update(client, down))
    except Exception as problem:  # somebody's network may raise anything
        raise RunError(f"the newcomer failed in round {round}: {one_line(problem)}") from None


def _score(method: Method, client: Client) -> float:
    try:
        return accuracy(evaluate(client, method.logits, client.data.test))
    except Exception as problem:  # somebody's network may raise anything
        raise RunError(f"the newcomer cannot be judged: {one_line(problem)}") from None


def _broadcast(folder: RunFolder, config: Config, client: Client, sent: list[Upload]) -> Payload:
    """Return what the server of that run would send to a newcomer now.

    Statistics that are only added up are added here, too: the header is then also the newcomer's.
    """
    method, (_, state) = config.method, folder.committed()
    if not method.accepts_newcomers:
        others = ", ".join(name for name, kind in METHODS.items() if kind().accepts_newcomers)
        raise RunError(
            f"{folder.path}: the server of {method.name} has no global header that a newcomer "
            f"could take; the servers of these methods have: {others}"
        )
    server = method.enlarged(part(state, "server."))
    if method.releases_once and sent:
        server = method.server_update(server, Uploads(sent[:1], client.task, client.round))
    down = method.broadcast(server, Recipient(client.id))
    try:
        return wire.read(wire.to_bytes(down), method.download_specs(Shapes.of(client)))
    except WireError as error:
        raise RunError(f"{folder.path} does not fit its configuration: {error}") from None


def _accuracy_of_the_others(folder: RunFolder) -> float:
    judged = [r.accuracy for r in folder.records() if r.accuracy is not None]
    if not judged:
        raise RunError(f"{folder.path}: no client has been judged yet")
    return float(judged[-1])
