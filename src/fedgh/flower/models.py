"""The trained model of a client on its own machine, from its own app and the states that it keeps.

The network, the data and their preprocessing come from the client's app, the settings from the last
request that the client has accepted: both are used exactly as for training.
"""

from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedgh.core.local import evaluate
from fedgh.core.metrics import accuracy
from fedgh.core.records import ClientInfo
from fedgh.core.threads import one_thread
from fedgh.core.types import Client, ClientData
from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, FedghError, RunError, one_line
from fedgh.flower import own_data
from fedgh.flower.bound import NodeConfig, PublicError
from fedgh.flower.client import (
    BlueprintApp,
    import_app,
    is_unchanged,
    parse_settings,
    partitioned_client,
)
from fedgh.flower.messages import Request
from fedgh.flower.node import file_of_client, read_settings
from fedgh.flower.own_data import OwnData
from fedgh.flower.states import StoredRun, find_run, listed, stored_runs
from fedgh.formats import few
from fedgh.models.body import Adapted
from fedgh.runs.checkpoint import ClientFiles
from fedgh.trained.clients import LoadedClient, TrainedClient
from fedgh.training.restore import load_client

PARTITIONED = BlueprintApp(partitioned_client)
"""The app of a client whose node.conf names none."""


@dataclass(frozen=True)
class StoredModel:
    """A client's model after a round of a run."""

    trained: TrainedClient
    origin: str  # lines about its run and round


def load_model(folder: Path, run: str | None = None, *, newest: bool = False) -> StoredModel:
    """Return the model of the client in `folder`, which has its node.conf.

    The model is that of the counted state of a run (see `states`); with `newest` it is that of the
    unconfirmed state, if there is one. The run is the one with the newest request, or the one named
    `run`. Raise FedghError if there is no such state, or if the client's app fails.
    """
    folder = folder.absolute()
    node = read_settings(file_of_client(folder, "node.conf"))
    number = node.get("client")
    if not isinstance(number, int):
        raise ConfigError(f"node.conf: client={number!r} is not the number of a client")
    states = folder / str(node.get("state", "states"))
    runs = stored_runs(states, number)
    if not runs:
        raise RunError(
            f"{states} has no run of client {number}; take part first: fedgh flower join {folder}"
        )
    stored = runs[0] if run is None else find_run(runs, run)
    request = stored.request()
    unconfirmed = stored.unconfirmed(request)
    round = unconfirmed if newest and unconfirmed else request.trained
    if not round:
        hint = f" (--newest uses that of round {unconfirmed})" if unconfirmed else ""
        others = f"\n{listed(runs)}" if len(runs) > 1 else ""
        raise RunError(f"{stored.name}: the server has confirmed no state yet{hint}{others}")
    try:
        with chdir(folder):  # relative paths of node.conf begin here
            trained = _load(stored, request, round, {**node, "device": "cpu"})
    except RunError:
        if stored.request() == request:
            raise
        return load_model(folder, run, newest=newest)  # a request has come meanwhile
    older = [other.name for other in runs if other is not stored] if run is None else []
    return StoredModel(trained, _origin(stored, round, unconfirmed, older))


def _origin(stored: StoredRun, round: int, unconfirmed: int | None, older: Sequence[str]) -> str:
    unsure = "no request has confirmed that the server counted it"
    sure = unsure if round == unconfirmed else "the server has counted it"
    lines = [f"model      of run {stored.name}, after round {round}: {sure}"]
    if unconfirmed not in (None, round):
        lines.append(
            f"newer      the state after round {unconfirmed} is here, too, but {unsure}; --newest "
            "uses it"
        )
    if older:
        lines.append(f"older      --run NAME uses another run: {few(list(older))}")
    return "\n".join(lines)


def _load(stored: StoredRun, request: Request, round: int, node: NodeConfig) -> TrainedClient:
    """Return the client after a round; without samples if its data have changed since then."""
    app, number = _app(node), request.client
    blueprint = _blueprint(app, request, stored.folder, node)
    source = blueprint.source(number)
    files = ClientFiles(stored.folder, round, request.experiment)
    if files.round(number) != round:
        raise RunError(
            f"{stored.folder} lacks the state after round {round}; put it back from a copy"
        )
    client = load_client(blueprint, number, files)
    splits = (client.data.train, client.data.validation, client.data.test)
    labels = torch.cat([split.labels for split in splits])
    counts = labels.bincount(minlength=source.num_classes).tolist()
    score = None
    if is_unchanged(stored.folder, source):
        with one_thread():  # as in the run, so that accuracies are equal
            score = accuracy(evaluate(client, blueprint.method.logits, client.data.test))
    else:  # they would be split differently, and test samples may have been trained on
        client.data = ClientData(*(replace(split, index=split.index[:0]) for split in splits))
    info = ClientInfo(
        client=number,
        extractor=_network_name(app, request, node, client),
        classes={name: n for name, n in zip(source.class_names, counts, strict=True) if n},
    )
    run = request.fingerprint or request.experiment
    loaded = LoadedClient.ready(client, blueprint.method, run, round)
    return TrainedClient(info, source.class_names, score, lambda: loaded)


def _app(node: NodeConfig) -> BlueprintApp:
    """Return the app that node.conf names; raise ConfigError if it cannot be used."""
    name = node.get("app")
    if name is None:
        return PARTITIONED
    try:
        app = import_app(str(name))
    except ConfigError as error:
        raise ConfigError(f"node.conf: app: {error}") from None
    if not isinstance(app, BlueprintApp):
        raise ConfigError(
            f"node.conf: app: '{name}' was not made by fedgh.flower.client_app, so its network is "
            "not known"
        )
    return app


def _blueprint(app: BlueprintApp, request: Request, folder: Path, node: NodeConfig) -> Blueprint:
    """Return the blueprint of the client; raise FedghError if the client's code or data fail."""
    try:
        return app.make_blueprint(request, folder, node)
    except PublicError as error:  # its cause, if any, is kept from the server
        raise (error.__cause__ or error) from None
    except FedghError:
        raise
    except Exception as error:  # a client's code may raise anything
        raise RunError(f"the app in node.conf fails: {one_line(error)}") from None


def _network_name(app: BlueprintApp, request: Request, node: NodeConfig, client: Client) -> str:
    """Return the name of the client's network, or of its class if it has no name."""
    if app is PARTITIONED:
        names = parse_settings(request, node).model.extractors
        return names[client.id % len(names)]
    if app is own_data.app:
        return OwnData.of(node).network
    extractor = client.model.extractor
    network = extractor.body.network if isinstance(extractor, Adapted) else extractor
    return type(network).__name__
