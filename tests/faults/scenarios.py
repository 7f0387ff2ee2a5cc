"""What a process does when a fault hits it; begun again, it goes on from what it finds."""

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
"""Do all there is to do in a folder, or what is left of it."""

ZOO = "tests.support.tiny:mlp,tests.support.tiny:noisy"
TINY = [
    "federation.clients=3",
    "federation.rounds=3",
    "federation.participation=0.67",
    f"model.extractors={ZOO}",
    "model.rep_dim=4",
    "local.epochs=1",
    "local.batch_size=64",
    "run.engine=serial",
]


def _few_digits() -> Source:
    """Sixty digits of three kinds: a round takes milliseconds."""
    digits = SOURCES["digits"](DataLocation())
    chosen = [place for label in range(3) for place in (digits.y == label).nonzero()[:20].flatten()]
    return Source("digits", digits.x[chosen], digits.y[chosen], digits.class_names[:3])


def training_run(settings: list[str]) -> Act:
    """A run in the folder `run`."""
    source = _few_digits()

    def tiny(settings: Config) -> Experiment:
        return prepare(settings, source=source)

    experiment = tiny(config.load("demo", [*TINY, *settings]))

    def act(place: Path) -> None:
        out = place / "run"
        if (out / "config.toml").exists():
            loop.resume(out, prepare=tiny)
        else:
            loop.run(experiment, out)

    return act


def participant(settings: list[str]) -> Act:
    """A participant that a server asks for three rounds; what is not answered is asked again."""
    from flwr.app import Message, MessageType

    from fedgh.flower import client, messages
    from fedgh.flower.grid import LocalGrid

    LocalGrid({})  # messages say whose they are
    experiment = prepare(config.load("demo", [*TINY, *settings]), source=_few_digits())
    down = wire.to_bytes(experiment.initial_server())

    def act(place: Path) -> None:
        file = place.with_suffix(".answers")
        answers = json.loads(file.read_text()) if file.exists() else []
        for round in range(len(answers) + 1, 4):
            ask = messages.Request(
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
                messages.request(ask, down), dst_node_id=1, message_type=MessageType.TRAIN
            )
            node: dict[str, int | str] = {"client": 0, "state": str(place / "states")}
            reply = client.answer(message, node, lambda *_: experiment.blueprint())
            if reply.up is None:
                raise RunError(reply.error)
            answers.append(hashlib.sha256(reply.up).hexdigest())
            file.write_text(json.dumps(answers))

    return act


def federation(settings: list[str]) -> Act:
    """A server and its participants, with real messages, in one process."""
    from fedgh.flower import client, engine
    from fedgh.flower.grid import LocalGrid, Node
    from fedgh.flower.keys import read_public_key, write_key_pair
    from fedgh.flower.server import serve

    engine.POLL = engine.GATHERING = 0.0
    experiment = prepare(config.load("demo", [*TINY, "data.classes_per_client=4", *settings]))

    def act(place: Path) -> None:
        about = place.with_suffix(".about")
        if not about.exists():
            about.mkdir()
            (about / "experiment.toml").write_text(experiment.config.to_toml())
            for k in range(experiment.task.num_clients):
                write_key_pair(about / f"{k}.key", about / f"{k}.pub")
        nodes = {
            1000 + k: Node(
                client.app,
                {"client": k, "state": str(place / "states"), "allow": ZOO},
                read_public_key(about / f"{k}.pub"),
            )
            for k in range(experiment.task.num_clients)
        }
        serve(
            LocalGrid(nodes),
            1,
            {
                "experiment": str(about / "experiment.toml"),
                "out": str(place / "run"),
                "participants": str(about),
            },
        )

    return act


SCENARIOS = {"run": training_run, "participant": participant, "federation": federation}
