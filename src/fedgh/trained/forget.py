"""Remove a client from a run, so that its uploads no longer influence the server and other clients.

Only a method whose server adds up uploads can do that exactly (`Method.forget`). The client is not
selected again when the run is resumed, and its model is deleted from the run folder. The records of
the run (rounds.jsonl, clients.json, summary.json) are not changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedgh import config as configs
from fedgh.config import LOCATIONS
from fedgh.core import wire
from fedgh.core.message import Shapes
from fedgh.core.method import Method
from fedgh.core.rng import isolated
from fedgh.core.server import CLASSES, GLOBAL
from fedgh.core.threads import one_thread
from fedgh.core.types import CPU, Payload, Recipient, Upload, moved, part, prefixed
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.training import restore
from fedgh.training.restore import FORGETTING, Checkpoint
from fedgh.trust import how_far


@dataclass(frozen=True)
class ForgetResult:
    """The removed client, and what happened to the others."""

    client: int
    refreshed: int  # other clients that have received the new header
    elsewhere: bool  # True: clients are on other machines; they get it in their next round


def forget(
    run: RunFolder | Path | str,
    client: int,
    *,
    checkpoint: Checkpoint | None = None,
    trust: bool = False,
) -> ForgetResult:
    """Remove a client from a run, finished or not. Raise FedghError if that is not possible.

    `checkpoint` has the clients of the run with their data; by default they are made as its
    configuration says, which may name code outside fedgh only if `trust` is True.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(Path(run))
    elsewhere = (folder.path / "flower.json").exists()
    with folder.locked(), one_thread():
        round, state = folder.rewind()
        if not 0 <= client < len(state["trained"]):
            raise ConfigError(
                f"there is no client {client}; they are 0 to {len(state['trained']) - 1}"
            )
        if FORGETTING in state and int(state[FORGETTING]) != client:
            raise restore.unfinished_forget(folder, state)
        method = checkpoint.blueprint.method if checkpoint else _method(folder, trust)
        others: list[int] = []
        if not elsewhere:
            checkpoint = checkpoint or restore.load(folder, trust=how_far(trust), forgetting=True)
            others = [number for number in checkpoint.took_part if number != client]
            if not checkpoint.data:
                raise RunError(
                    f"{folder.path}: the data of the other clients are needed, but are not here"
                )
        server = method.forget(part(state, "server."), client)
        state = _without(state, client, others)
        folder.update_versions()  # states are written in the current format
        # If the process is killed after this, only the same command can continue the run.
        folder.commit(
            round, {**state, **prefixed("server.", server), FORGETTING: torch.tensor(client)}
        )
        for number, means in folder.means().items():
            others_rows = means["clients"] != client
            folder.keep_means(number, {name: rows[others_rows] for name, rows in means.items()})
        folder.client_files(round).erase(client, round)
        # Twice, because the answers of the others to the new header are part of the next download.
        for _ in range(2 if checkpoint else 0):
            assert checkpoint is not None
            answers = _refresh(folder, checkpoint, server, others)
            resources, task = checkpoint.experiment.server_resources(), checkpoint.experiment.task
            uploads = Uploads(
                answers, task, round, resources.device, resources.public, resources.network
            )
            server = moved(method.server_update(server, uploads), CPU)
        folder.commit(round, {**state, **prefixed("server.", server)})
        folder.discard_leftovers()
    return ForgetResult(client, len(others), elsewhere)


def _method(folder: RunFolder, trust: bool) -> Method:
    ignoring = (*LOCATIONS, "model.extractors")
    return configs.load_run(folder.config, trust=how_far(trust), ignoring=ignoring).method


def _refresh(
    folder: RunFolder, checkpoint: Checkpoint, server: Payload, others: list[int]
) -> Iterator[Upload]:
    """Apply the server's download to clients in this folder; yield their uploads."""
    method, files = checkpoint.blueprint.method, folder.client_files(checkpoint.round)
    current = replace(checkpoint, files=files)
    for number in others:
        client = current.client(number)
        client.round = checkpoint.round
        to = Recipient(number, last_round=files.round(number))
        down = wire.to_bytes(method.broadcast(server, to))
        with isolated(client.task.seed, "forget", number, checkpoint.round):
            up = method.refresh(client, wire.read(down, method.download_specs(Shapes.of(client))))
        files.write(files.round(number), number, client.state())
        yield Upload(number, 0, up)
    files.seal(checkpoint.round)


def _without(state: Payload, client: int, others: list[int]) -> Payload:
    """Return a run's state without the server's: the client is excluded, other scores are stale."""
    rest = {name: t.clone() for name, t in state.items() if not name.startswith("server.")}
    rest.pop(FORGETTING, None)
    rest["trained"][client] = 0
    rest["stale"][others] = True
    if CLASSES in rest:
        rest[CLASSES][client] = False
    if GLOBAL in rest:
        rest[GLOBAL][[client, *others]] = torch.nan
    rest.setdefault("forgotten", torch.zeros_like(rest["stale"]))[client] = True
    return rest
