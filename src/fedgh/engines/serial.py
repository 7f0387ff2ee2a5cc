"""The engine that runs one client after the other in this process, for debugging."""

from collections.abc import Iterator, Sequence

from fedgh.core.types import Job, Reply
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.files import explaining
from fedgh.runs.checkpoint import ClientFiles


class Serial:
    """An engine with all clients in this process; its results have the same bits as any other's."""

    def __init__(self, blueprint: Blueprint, files: ClientFiles, memory: int) -> None:
        self._files = files
        self._host = ClientHost(blueprint, files, memory)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Run the jobs in order, and yield the reply of each."""
        with explaining():
            self._files.delete_superseded()
            for job in jobs:
                yield self._host.run(job)

    def save(self, round: int) -> None:
        """Write the states of the clients that have changed."""
        with explaining():
            self._host.save(round)

    def close(self) -> None:
        """Do nothing: this engine holds no process and no connection."""
