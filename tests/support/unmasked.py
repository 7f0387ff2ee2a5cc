"""Runs whose uploads are added up without masks: the result that secure aggregation must equal."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgh.core.server import Engine
from fedgh.core.types import Job, Payload, Reply
from fedgh.runs.folder import RunFolder
from fedgh.secure.step import Phase
from fedgh.training import loop
from fedgh.training.experiment import Experiment

Lost = Collection[tuple[Phase, int, int]]
"""Phases in which a client does not answer: the phase, the round and the client."""


class Unmasked:
    """An engine whose clients send the numbers of their uploads without masks."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        return self.engine.run(jobs)

    def unmask(self, senders: Sequence[int], length: int) -> tuple[Tensor, int]:
        return torch.zeros(length, dtype=torch.int64), 0

    def save(self, round: int) -> None:
        self.engine.save(round)

    def close(self) -> None:
        self.engine.close()


class Losing(Unmasked):
    """An engine that loses the answers of some clients in some phases.

    A client whose upload is lost has trained; one that is lost before is not asked to train.
    """

    def __init__(self, engine: Engine, lost: Lost) -> None:
        super().__init__(engine)
        self.lost = lost

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        phases = {job.client_id: job.secure.phase for job in jobs if job.secure is not None}
        for reply in self.engine.run(jobs):
            phase = phases.get(reply.client_id)
            if phase is not None and (phase, reply.round, reply.client_id) in self.lost:
                yield Reply(reply.client_id, reply.round, error="lost")
            else:
                yield reply


def unmasked_engine(
    experiment: Experiment, folder: RunFolder, round: int, state: Payload
) -> Unmasked:
    """Return an engine for `make_engine` whose uploads have no masks."""
    return Unmasked(loop.plain_engine(experiment, folder, round, state))


class WithoutUploadsOf(Unmasked):
    """An engine whose uploads have no masks, and are lost in some rounds, after training."""

    def __init__(self, engine: Engine, lost: Collection[tuple[int, int]]) -> None:
        super().__init__(engine)
        self.lost = lost  # round, client

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for reply in self.engine.run(jobs):
            lost = (reply.round, reply.client_id) in self.lost and reply.up is not None
            yield Reply(reply.client_id, reply.round, error="lost") if lost else replace(reply)
