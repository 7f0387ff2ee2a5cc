"""Processes set up like workers, to measure the highest speed that such processes can reach."""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from fedgh.engines.forkserver import no_interrupts
from fedgh.engines.workers import available_cores, become_worker, worker_context

T = TypeVar("T")

SIZE = 1024


class Helpers:
    """As many single-threaded processes as there are cores."""

    def __enter__(self) -> "Helpers":
        context = worker_context()
        self.count = available_cores()
        self.processes: list[Any] = []
        self._connections: list[Connection] = []
        with no_interrupts():
            for _ in range(self.count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_help, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                self.processes.append(process)
                self._connections.append(ours)
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in zip(self.processes, self._connections, strict=True):
            connection.close()
            process.terminate()
            process.join()

    def all(self, function: Callable[..., T], *args: Any) -> list[T]:
        """Call `function` in all processes at the same time, and return the results."""
        for connection in self._connections:
            connection.send((function, args))
        return [connection.recv() for connection in self._connections]

    def limit(self, seconds: float = 2.0) -> float:
        """Return GFLOP/s of matrix products, summed over processes: the limit of the machine."""
        return sum(self.all(_matrix_products, seconds))


def _help(connection: Connection) -> None:
    become_worker()
    try:
        while True:
            function, args = connection.recv()
            connection.send(function(*args))
    except (EOFError, OSError):
        return


def _matrix_products(seconds: float) -> float:
    """Return GFLOP/s of sgemm in this process."""
    a = torch.rand(SIZE, SIZE)
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        a @ a
        count += 1
    return count * 2 * SIZE**3 / spent / 1e9
