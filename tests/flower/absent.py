"""Runs in which it is known beforehand what some clients answer."""

from collections.abc import Iterator, Mapping, Sequence

from fedgh.core.server import Engine
from fedgh.core.types import Job, Payload, Reply
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.experiment import Experiment

Replies = Mapping[tuple[int, int], Reply]
"""By client and round."""


class Known:
    """An engine that has some replies already: who would have given them is never asked."""

    def __init__(self, engine: Engine, replies: Replies) -> None:
        self.engine, self.replies = engine, replies

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        known = [job for job in jobs if (job.client_id, job.round) in self.replies]
        for job in known:
            yield self.replies[job.client_id, job.round]
        yield from self.engine.run([job for job in jobs if job not in known])

    def save(self, round: int) -> None:
        self.engine.save(round)

    def close(self) -> None:
        self.engine.close()


def with_replies(replies: Replies) -> loop.MakeEngine:
    """The engine of this process, but for these replies."""

    def make(experiment: Experiment, folder: RunFolder, done: int, state: Payload) -> Engine:
        return Known(loop.local_engine(experiment, folder, done, state), replies)

    return make


def with_absent(absent: set[tuple[int, int]], reason: str) -> loop.MakeEngine:
    """The engine of this process, in which some clients fail in some rounds."""
    return with_replies({key: Reply(*key, error=reason) for key in absent})
