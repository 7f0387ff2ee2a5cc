"""Engines with preset replies for some clients and rounds."""

from collections.abc import Iterator, Mapping, Sequence

from fedgh.core.server import Engine
from fedgh.core.types import Job, Payload, Reply
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.experiment import Experiment

Replies = Mapping[tuple[int, int], Reply]
"""Replies by client and round."""


class PresetReplies:
    """An engine that returns preset replies, and runs all other jobs on another engine."""

    def __init__(self, engine: Engine, replies: Replies) -> None:
        self.engine, self.replies = engine, replies

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        preset = [job for job in jobs if (job.client_id, job.round) in self.replies]
        for job in preset:
            yield self.replies[job.client_id, job.round]
        yield from self.engine.run([job for job in jobs if job not in preset])

    def save(self, round: int) -> None:
        self.engine.save(round)

    def close(self) -> None:
        self.engine.close()


def with_replies(replies: Replies) -> loop.MakeEngine:
    """Return a function that makes a local engine with these preset replies."""

    def make(experiment: Experiment, folder: RunFolder, done: int, state: Payload) -> Engine:
        return PresetReplies(loop.local_engine(experiment, folder, done, state), replies)

    return make


def with_absent(absent: set[tuple[int, int]], reason: str) -> loop.MakeEngine:
    """Return a function that makes a local engine in which clients fail.

    `absent` has pairs of a client and the round in which it fails.
    """
    return with_replies({key: Reply(*key, error=reason) for key in absent})
