"""Take a client out of a run: afterwards nothing that it sent is in the server or in other clients.

Only a method whose server adds up what clients send can do that exactly (`Method.forget`). The
client is not asked again when the run is resumed, and its own model is deleted from the run folder.
What the run has recorded (rounds.jsonl, clients.json, summary.json) stays as it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fedgh import config as configs
from fedgh.config import PLACES
from fedgh.core import wire
from fedgh.core.message import Shapes
from fedgh.core.method import Method
from fedgh.core.rng import isolated
from fedgh.core.server import CLASSES, GLOBAL
from fedgh.core.threads import one_thread
from fedgh.core.types import Payload, Recipient, Upload, part, prefixed
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.training import restore
from fedgh.training.restore import FORGETTING, Checkpoint
from fedgh.trust import how_far


@dataclass(frozen=True)
class ForgetResult:
    """Who was taken out, and where the others' models are."""

    client: int
    refreshed: int  # other clients that were given the new header
    elsewhere: bool  # the others are on other machines: they get it in their next round


def forget(
    run: RunFolder | Path | str,
    client: int,
    *,
    left: Checkpoint | None = None,
    trust: bool = False,
) -> ForgetResult:
    """Take a client out of a run, finished or not; FedghError says why not.

    `left` has the clients of the run with their data; else they are made again as its configuration
    says, which may name code outside fedgh if the caller trusts it.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(Path(run))
    elsewhere = (folder.path / "flower.json").exists()
    with folder.locked(), one_thread():
        round, state = folder.rewind()
        if not 0 <= client < len(state["trained"]):
            raise ConfigError(f"client {client}: they are 0 to {len(state['trained']) - 1}")
        if FORGETTING in state and int(state[FORGETTING]) != client:
            raise restore.interrupted(folder, state)
        method = left.blueprint.method if left else _method(folder, trust)
        others: list[int] = []
        if not elsewhere:
            left = left or restore.load(folder, trust=how_far(trust), forgetting=True)
            others = [number for number in left.took_part if number != client]
            if not left.data:
                raise RunError(
                    f"{folder.path}: the data of the other clients are needed, and not here"
                )
        server = method.forget(part(state, "server."), client)
        state = _without(state, client, others)
        # From here on a crash leaves a run that only the same command goes on with.
        folder.commit(
            round, {**state, **prefixed("server.", server), FORGETTING: torch.tensor(client)}
        )
        for number, means in folder.means().items():
            kept = means["clients"] != client
            folder.keep_means(number, {name: rows[kept] for name, rows in means.items()})
        for file in folder.checkpoint.glob(f"client-{client:06}.round-*.safetensors"):
            file.unlink()
        # Twice: what the others answer to the new header is part of what all are sent.
        for _ in range(2 if left else 0):
            assert left is not None
            answers = _refresh(folder, left, server, others)
            around, task = left.experiment.surroundings(), left.experiment.task
            uploads = Uploads(answers, task, round, around.device, around.public, around.network)
            server = method.server_update(server, uploads)
        folder.commit(round, {**state, **prefixed("server.", server)})
    return ForgetResult(client, len(others), elsewhere)


def _method(folder: RunFolder, trust: bool) -> Method:
    ignoring = (*PLACES, "model.extractors")
    return configs.load_run(folder.config, trust=how_far(trust), ignoring=ignoring).method


def _refresh(
    folder: RunFolder, left: Checkpoint, server: Payload, others: list[int]
) -> Iterator[Upload]:
    """Give clients whose states are here what the server would send them; yield their answers."""
    method, files = left.blueprint.method, folder.client_files(left.round)
    for number in others:
        client = left.client(number)
        client.round = left.round
        to = Recipient(number, last_round=files.round(number))
        down = wire.to_bytes(method.broadcast(server, to))
        with isolated(client.task.seed, "forget", number, left.round):
            up = method.refresh(client, wire.read(down, method.download_specs(Shapes.of(client))))
        files.write(files.round(number), number, client.state())
        yield Upload(number, 0, up)
    files.seal(left.round)


def _without(state: Payload, client: int, others: list[int]) -> Payload:
    """Return the rest of a run's state: the client takes no part, the others' scores are old."""
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
