"""One client after the other in this process: the engine to debug with."""

from collections.abc import Iterator, Sequence

from fedgh.core.types import Job, Reply
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.files import explaining
from fedgh.runs.checkpoint import ClientFiles


class Serial:
    """Same bits as every other engine, with all clients within reach of a debugger."""

    def __init__(self, blueprint: Blueprint, files: ClientFiles, memory: int) -> None:
        self._host = ClientHost(blueprint, files, memory)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Do the jobs one by one."""
        with explaining():
            for job in jobs:
                yield self._host.run(job)

    def save(self, round: int) -> None:
        """Write the clients that have changed."""
        with explaining():
            self._host.save(round)

    def close(self) -> None:
        """There is nothing to close."""
