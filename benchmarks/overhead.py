"""Duration of a round whose clients do nothing."""

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import nn

from benchmarks.rounds import Stopwatch
from fedgh import config
from fedgh.core.message import NOTHING
from fedgh.core.method import Method
from fedgh.core.types import Client, Payload
from fedgh.core.uploads import Uploads
from fedgh.training import loop
from fedgh.training.experiment import prepare

if TYPE_CHECKING:
    from benchmarks.suite import Bench

ROUNDS = 20


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


def engine_overhead(bench: "Bench") -> Iterator[tuple[str, float]]:
    """Seconds per round of 10 clients that do nothing: messages, checkpoint, records"""
    for engine in ("serial", "workers"):
        settings = [
            "method.name=benchmarks.overhead:Idle",
            "model.extractors=benchmarks.overhead:smallest",
            "model.rep_dim=1",
            f"federation.rounds={ROUNDS}",
            f"run.eval_every={ROUNDS}",
            f"run.engine={engine}",
        ]
        watch = Stopwatch()
        experiment = prepare(config.load("demo", settings))
        loop.run(experiment, bench.folder / f"idle-{engine}", [watch])
        yield f"overhead_seconds_{engine}", median(timed.seconds for timed in watch.rounds)
