"""One single-threaded process per core; clients stay where they first worked.

Data lie in shared memory, one copy per machine. Only messages travel: jobs there, replies back.
Which worker does a job cannot change its result, so the number of workers cannot either.
"""

import ctypes
import os
import pickle
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from fedgh.core.types import Job, Reply
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.errors import ConfigError, RunError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
SHARED_MEMORY = Path("/dev/shm")


class Workers:
    """The engine for real work on one machine."""

    def __init__(self, blueprint: Blueprint, checkpoint: Path, round: int, count: int = 0) -> None:
        _share(blueprint)
        count = min(count or _cores(), blueprint.task.num_clients)
        # Workers are forked from a clean helper process that has imported everything once (the
        # first optimizer imports dynamo): this process may hold threads that do not survive a fork.
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fedgh.engines.workers", "fedgh.methods", "torch._dynamo"])
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._home: dict[int, int] = {}  # client -> worker
        try:
            with _no_interrupts():
                for index in range(count):
                    ours, theirs = context.Pipe()
                    process = context.Process(
                        target=_work,
                        args=(theirs, blueprint, checkpoint, round),
                        name=f"fedgh-worker-{index}",
                        daemon=True,
                    )
                    process.start()
                    theirs.close()
                    self._workers.append((process, ours))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise ConfigError(
                f"an object cannot be sent to worker processes ({error}); define it at the top "
                "level of an importable module, or use run.engine = 'serial'"
            ) from None

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Hand out all jobs; yield replies in the order of the jobs."""
        queues: list[list[Job]] = [[] for _ in self._workers]
        for job in jobs:
            home = self._home.get(job.client_id)
            if home is None:
                home = min(range(len(queues)), key=lambda worker: len(queues[worker]))
                self._home[job.client_id] = home
            queues[home].append(job)
        self._send([("run", queue) for queue in queues])
        early: dict[int, Reply] = {}
        replies = self._replies(len(jobs))
        for job in jobs:
            while job.client_id not in early:
                reply = next(replies)
                early[reply.client_id] = reply
            yield early.pop(job.client_id)

    def save(self, round: int) -> None:
        """Every worker writes its own clients."""
        self._send([("save", round)] * len(self._workers))
        for problem in self._replies(len(self._workers)):
            if problem is not None:
                raise RunError(f"cannot write the checkpoint of round {round}: {problem}")

    def close(self) -> None:
        """End the workers at once. What counts is on disk, complete or absent."""
        for process, connection in self._workers:
            connection.close()
            process.terminate()
        for process, _ in self._workers:
            process.join()
        self._workers = []

    def _send(self, messages: list[tuple[str, Any]]) -> None:
        for (process, connection), message in zip(self._workers, messages, strict=True):
            try:
                connection.send(message)
            except OSError:
                raise _died(process) from None

    def _replies(self, count: int) -> Iterator[Any]:
        """The next `count` answers of the workers, as they come."""
        processes = {connection: process for process, connection in self._workers}
        while count:
            for ready in wait(list(processes)):
                assert isinstance(ready, Connection)
                try:
                    answer = ready.recv()
                except (EOFError, OSError):
                    raise _died(processes[ready]) from None
                count -= 1
                yield answer


def _work(connection: Connection, blueprint: Blueprint, checkpoint: Path, round: int) -> None:
    """The life of a worker: do what is asked until the other end is gone."""
    _keep_memory()
    torch.set_num_threads(1)
    host = ClientHost(blueprint, checkpoint, round)
    try:
        while True:
            what, argument = connection.recv()
            if what == "run":
                for job in argument:
                    connection.send(host.run(job))
            else:
                connection.send(_save(host, argument))
    except (EOFError, OSError):
        return


def _keep_memory() -> None:
    """Keep glibc from handing memory back after every batch, only to ask for it again.

    Large tensors then live on the heap, which is never trimmed: fresh pages are slow to get. Other
    C libraries have no mallopt, and go without.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _save(host: ClientHost, round: int) -> str | None:
    try:
        host.save(round)
    except OSError as error:
        return str(error)
    return None


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C. Processes started meanwhile never get it: it is for the parent."""
    resource_tracker.ensure_running()  # started later, it would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _died(process: BaseProcess) -> RunError:
    # The run ends rather than going on without these clients: resumed, it gives exactly the
    # numbers of an undisturbed run, which a machine's hiccup should not change.
    process.join(timeout=5)
    return RunError(
        f"a worker process ended unexpectedly (exit code {process.exitcode}; -9 is often a lack "
        "of memory). The last completed round is safe: go on with `fedgh resume`, perhaps with "
        "fewer workers. A script that starts a run needs `if __name__ == '__main__':` around it."
    )


def _cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _share(blueprint: Blueprint) -> None:
    """Move the data into shared memory, once."""
    tensors = [blueprint.x, blueprint.y, blueprint.partition.order, blueprint.partition.bounds]
    if blueprint.global_sample is not None:
        tensors.append(blueprint.global_sample)
    wanted = sum(t.nbytes for t in tensors if not t.is_shared())
    if SHARED_MEMORY.exists() and wanted > (free := shutil.disk_usage(SHARED_MEMORY).free):
        raise RunError(
            f"the data need {wanted >> 20} MiB of shared memory, {SHARED_MEMORY} has "
            f"{free >> 20} MiB; enlarge it (docker: --shm-size) or use run.engine = 'serial'"
        )
    for tensor in tensors:
        tensor.share_memory_()
