"""One client after the other in this process: the engine to debug with."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedgh.core.types import Job, Reply
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.errors import RunError


class Serial:
    """Same bits as every other engine, with all clients within reach of a debugger."""

    def __init__(self, blueprint: Blueprint, checkpoint: Path, round: int) -> None:
        self._host = ClientHost(blueprint, checkpoint, round)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Do the jobs one by one."""
        return map(self._host.run, jobs)

    def save(self, round: int) -> None:
        """Write the clients that have changed."""
        try:
            self._host.save(round)
        except OSError as error:
            raise RunError(f"cannot write the checkpoint of round {round}: {error}") from None

    def close(self) -> None:
        """There is nothing to close."""
