"""One single-threaded process per core; clients stay where they first worked, or nearly.

Data lie in shared memory, one copy per machine. Only messages travel: jobs there, replies back.
The longest jobs are shared out first, and a client moves when its worker has far more to do than
another. Each worker keeps to the order of the clients, in which the server wants their replies.
Which worker does a job cannot change its result, so the number of workers cannot either.
"""

import ctypes
import os
import pickle
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from fedgh.core.types import Job, Reply
from fedgh.engines.device import processes_for, share_of
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.errors import ConfigError, RunError
from fedgh.files import cannot_write
from fedgh.runs.checkpoint import ClientFiles

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
SHARED_MEMORY = Path("/dev/shm")


class Workers:
    """The engine for real work on one machine."""

    def __init__(
        self, blueprint: Blueprint, files: ClientFiles, memory: int, count: int = 0
    ) -> None:
        _share(blueprint)
        count = count or processes_for(blueprint.device, available_cores())
        count = min(count, blueprint.task.num_clients)
        self._cost = blueprint.cost
        context = worker_context()
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self.home: dict[int, int] = {}  # client -> worker
        try:
            with no_interrupts():
                for index in range(count):
                    ours, theirs = context.Pipe()
                    device = share_of(blueprint.device, index)
                    process = context.Process(
                        target=_work,
                        args=(theirs, replace(blueprint, device=device), files, memory // count),
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
        """Hand out all jobs, and yield the replies as they come."""
        queues: list[list[Job]] = [[] for _ in self._workers]
        load = [0.0] * len(queues)
        for cost, job in sorted(
            ((self._cost(job), job) for job in jobs), key=lambda item: -item[0]
        ):
            lightest = min(range(len(load)), key=load.__getitem__)
            worker = self.home.get(job.client_id, lightest)
            if load[worker] >= load[lightest] + cost:  # elsewhere it would be done by then
                self.relocate(job.client_id, worker, lightest, job.round)
                worker = lightest
            self.home[job.client_id] = worker
            queues[worker].append(job)
            load[worker] += cost
        position = {job.client_id: place for place, job in enumerate(jobs)}
        for worker, queue in enumerate(queues):
            self._send(worker, "run", sorted(queue, key=lambda job: position[job.client_id]))
        return self._answers(len(jobs))

    def save(self, round: int) -> None:
        """Every worker writes its own clients."""
        for worker in range(len(self._workers)):
            self._send(worker, "save", round)
        for _ in self._answers(len(self._workers)):
            pass

    def close(self) -> None:
        """End the workers at once. What counts is on disk, complete or absent."""
        for process, connection in self._workers:
            connection.close()
            process.terminate()
        for process, _ in self._workers:
            process.join()
        self._workers = []

    def relocate(self, client: int, origin: int, destination: int, round: int) -> None:
        """Let a client change its worker, between rounds."""
        self._send(origin, "release", (client, round))
        (path,) = self._answers(1)
        if path is not None:
            self._send(destination, "adopt", (client, path))

    def _send(self, worker: int, what: str, argument: object) -> None:
        process, connection = self._workers[worker]
        try:
            connection.send((what, argument))
        except OSError:
            raise _died(process) from None

    def _answers(self, count: int) -> Iterator[Any]:
        """The next `count` answers of the workers, as they come."""
        processes = {connection: process for process, connection in self._workers}
        while count > 0:
            for ready in wait(list(processes)):
                assert isinstance(ready, Connection)
                try:
                    answer = ready.recv()
                except (EOFError, OSError):
                    raise _died(processes[ready]) from None
                if isinstance(answer, OSError):
                    raise cannot_write(answer)
                if isinstance(answer, RunError):
                    raise answer
                count -= 1
                yield answer


def _work(connection: Connection, blueprint: Blueprint, files: ClientFiles, memory: int) -> None:
    """The life of a worker: do what is asked until the other end is gone."""
    become_worker()
    host = ClientHost(blueprint, files, memory)
    try:
        while True:
            for answer in _answer(host, files, *connection.recv()):
                connection.send(answer)
    except (EOFError, OSError):
        return


def _answer(host: ClientHost, files: ClientFiles, what: str, argument: Any) -> Iterator[Any]:
    """Do what is asked. What cannot be written or read is an answer, too."""
    try:
        if what == "run":
            yield from map(host.run, argument)
        elif what == "release":
            client, round = argument
            host.release(client, round)
            yield files.forget(client)
        elif what == "adopt":
            files.adopt(*argument)
        else:
            host.save(argument)
            yield None
    except (OSError, RunError) as error:
        yield error


def worker_context() -> Any:
    """How worker processes are made.

    They are forked from a clean helper process that has imported everything once (the first
    optimizer imports dynamo): this process may hold threads that do not survive a fork.
    """
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedgh.engines.workers", "fedgh.methods", "torch._dynamo"])
    return context


def become_worker() -> None:
    """Set a process up for single-threaded work on many tensors."""
    _keep_memory()
    torch.set_num_threads(1)


def _keep_memory() -> None:
    """Keep glibc from handing memory back after every batch, only to ask for it again.

    Large tensors then live on the heap, which is never trimmed: fresh pages are slow to get. Other
    C libraries have no mallopt, and go without.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def no_interrupts() -> Iterator[None]:
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
        "fewer workers or less run.memory. A program that starts a run must be a "
        "file, with `if __name__ == '__main__':` around what it does."
    )


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _share(blueprint: Blueprint) -> None:
    """Move the data into shared memory, once."""
    tensors = [blueprint.partition.order, blueprint.partition.bounds]
    for source in blueprint.sources:
        tensors += [source.x, source.y]
    if blueprint.global_sample is not None:
        tensors.append(blueprint.global_sample.order)
    if blueprint.public is not None:
        tensors += [blueprint.public.x, blueprint.public.y]
    wanted = sum(t.nbytes for t in tensors if not t.is_shared())
    if SHARED_MEMORY.exists() and wanted > (free := shutil.disk_usage(SHARED_MEMORY).free):
        raise RunError(
            f"the data need {wanted >> 20} MiB of shared memory, {SHARED_MEMORY} has "
            f"{free >> 20} MiB; enlarge it (docker: --shm-size) or use run.engine = 'serial'"
        )
    for tensor in tensors:
        tensor.share_memory_()
