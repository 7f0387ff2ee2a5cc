"""Duration of a round whose participants do nothing."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.rounds import Stopwatch
from fedgh import config
from fedgh.config import Config
from fedgh.core.message import NOTHING
from fedgh.core.method import Method
from fedgh.core.rng import stream
from fedgh.core.types import Client, Payload
from fedgh.core.uploads import Uploads
from fedgh.data.sources import Source
from fedgh.training import loop
from fedgh.training.experiment import Experiment, prepare

if TYPE_CHECKING:
    from benchmarks.suite import Bench

WORKERS = (10, 100, 1_000, 10_000)  # numbers of participants on two workers
SERIAL = (10, 1_000)  # numbers of participants on the engine `serial`
SAMPLES = 10  # of each client
REP_DIM = 13  # a client's state then has 985 numbers: 4 KB
ROUNDS = 8


class Idle(Method):
    """A method that computes and exchanges nothing."""

    up = down = NOTHING

    def client_update(self, client: Client, down: Payload) -> Payload:  # noqa: ARG002
        return {}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:  # noqa: ARG002
        return server


def smallest(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    """Return an extractor of a single linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), rep_dim))


def idle_participants(bench: "Bench") -> Iterator[tuple[str, float]]:
    """N participants that do nothing: seconds of a round with a checkpoint, and without one"""
    rounds = ROUNDS // 2 if bench.quick else ROUNDS
    for participants in SERIAL:
        name = f"idle_seconds_{participants}_serial"
        yield name, _seconds(participants, "serial", rounds, 1, bench.folder / name)
    for participants in WORKERS:
        for suffix, every in (("workers", 1), ("workers_without_checkpoint", rounds + 1)):
            name = f"idle_seconds_{participants}_{suffix}"
            yield name, _seconds(participants, "workers", rounds, every, bench.folder / name)


def _seconds(participants: int, engine: str, rounds: int, every: int, out: Path) -> float:
    """Return the median seconds of a round, with a checkpoint after every so many rounds."""
    settings = [f"run.engine={engine}", "run.workers=2", f"run.checkpoint_every={every}"]
    watch = Stopwatch()
    loop.run(idle_experiment(participants, rounds, *settings), out, [watch])
    return median(timed.seconds for timed in watch.rounds)


def idle_experiment(participants: int, rounds: int, *settings: str) -> Experiment:
    """Return an experiment whose participants do nothing; only the last round is evaluated."""
    source = Source("random images", *idle_samples(participants), tuple("0123456789"))
    return prepare(idle_config(participants, rounds, *settings), source=source)


def idle_samples(participants: int) -> tuple[Tensor, Tensor]:
    """Return random images and their labels, enough for so many participants."""
    n = participants * SAMPLES
    x = torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=stream(0, "idle"))
    return x, torch.arange(n) % 10


def idle_config(participants: int, rounds: int, *settings: str) -> Config:
    """Return the configuration of participants that do nothing."""
    fixed = [
        "method.name=benchmarks.idle:Idle",
        "model.extractors=benchmarks.idle:smallest",
        f"model.rep_dim={REP_DIM}",
        f"federation.clients={participants}",
        f"federation.rounds={rounds}",
        f"run.eval_every={rounds + 1}",
        "run.evaluate=trained",
        "run.global_accuracy=never",
    ]
    return config.load("demo", [*fixed, *settings])
