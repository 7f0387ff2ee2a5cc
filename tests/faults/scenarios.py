"""The scenarios that faults interrupt; started again in the same folder, each resumes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch

from fedgh import __version__, config
from fedgh.config import Config
from fedgh.core import wire
from fedgh.data.sources import SOURCES, DataLocation, Source
from fedgh.errors import RunError
from fedgh.training import loop
from fedgh.training.experiment import Experiment, prepare

Act = Callable[[Path], None]
"""Function that runs a scenario in a folder, or the rest of it."""

EXTRACTORS = "tests.support.tiny:mlp,tests.support.tiny:noisy"
TINY = [
    "federation.clients=3",
    "federation.rounds=3",
    "federation.participation=0.67",
    f"model.extractors={EXTRACTORS}",
    "model.rep_dim=4",
    "local.epochs=1",
    "local.batch_size=64",
    "run.engine=serial",
]


def _few_digits() -> Source:
    """Return sixty samples of three classes, so that a round takes milliseconds."""
    digits = SOURCES["digits"](DataLocation())
    chosen = [index for label in range(3) for index in (digits.y == label).nonzero()[:20].flatten()]
    return Source("digits", digits.x[chosen], digits.y[chosen], digits.class_names[:3])


def training_run(settings: list[str]) -> Act:
    """Return a scenario: a run in the folder `run`."""
    source = _few_digits()

    def tiny(settings: Config) -> Experiment:
        return prepare(settings, source=source)

    experiment = tiny(config.load("demo", [*TINY, *settings]))

    def act(workdir: Path) -> None:
        out = workdir / "run"
        if (out / "config.toml").exists():
            loop.resume(out, prepare=tiny)
        else:
            loop.run(experiment, out)

    return act


def participant(settings: list[str]) -> Act:
    """Return a scenario: a client on Flower answers three rounds; lost answers are repeated."""
    from flwr.app import Message, MessageType

    from fedgh.flower import client, messages
    from fedgh.flower.grid import LocalGrid

    LocalGrid({})  # sets the identity of this process, which Flower puts into messages
    experiment = prepare(config.load("demo", [*TINY, *settings]), source=_few_digits())
    down = wire.to_bytes(experiment.initial_server())

    def act(workdir: Path) -> None:
        file = workdir.with_suffix(".answers")
        answers = json.loads(file.read_text()) if file.exists() else []
        for round in range(len(answers) + 1, 4):
            request = messages.Request(
                torch=torch.__version__,
                version=__version__,
                experiment="e",
                start=1,
                client=0,
                round=round,
                trained=round - 1,
                committed=(round - 1) // 2 * 2,  # as with run.checkpoint_every = 2
                settled=(round - 1) // 2 * 2,
                evaluate=True,
                evaluate_globally=False,
                deadline=60,
                settings={},
                fingerprint=None,
            )
            message = Message(
                messages.pack_request(request, down), dst_node_id=1, message_type=MessageType.TRAIN
            )
            node: dict[str, int | str] = {"client": 0, "state": str(workdir / "states")}
            reply = client.answer(message, node, lambda *_: experiment.blueprint())
            if reply.up is None:
                raise RunError(reply.error)
            answers.append(hashlib.sha256(reply.up).hexdigest())
            file.write_text(json.dumps(answers))

    return act


def federation(settings: list[str]) -> Act:
    """Return a scenario: a server and its clients in one process, with real messages."""
    from fedgh.flower import client, engine, server
    from fedgh.flower.current import CurrentFile
    from fedgh.flower.grid import LocalGrid, Node
    from fedgh.flower.keys import read_public_key, write_key_pair

    engine.POLL = engine.MIN_FIRST_ROUND = 0.0
    # A thread writes current.json, at no certain moment; nothing else depends on it.
    vars(server)["CurrentFile"] = lambda *_: CurrentFile()
    experiment = prepare(config.load("demo", [*TINY, "data.classes_per_client=4", *settings]))

    def act(workdir: Path) -> None:
        inputs = workdir.with_suffix(".inputs")
        if not inputs.exists():
            inputs.mkdir()
            (inputs / "experiment.toml").write_text(experiment.config.to_toml())
            for k in range(experiment.task.num_clients):
                write_key_pair(inputs / f"{k}.key", inputs / f"{k}.pub")
        nodes = {
            1000 + k: Node(
                client.app,
                {"client": k, "state": str(workdir / "states"), "allow": EXTRACTORS},
                read_public_key(inputs / f"{k}.pub"),
            )
            for k in range(experiment.task.num_clients)
        }
        server.serve(
            LocalGrid(nodes),
            1,
            {
                "experiment": str(inputs / "experiment.toml"),
                "out": str(workdir / "run"),
                "participants": str(inputs),
            },
        )

    return act


SCENARIOS = {"run": training_run, "participant": participant, "federation": federation}
