"""The engine that runs clients in single-threaded worker processes, by default one per core.

The data are in shared memory, one copy per machine; only jobs and replies are sent between
processes. The longest jobs are assigned first. A client stays with its worker, and moves only when
another worker would finish its job earlier. Each worker runs its jobs in the order of the clients,
because the server needs the replies in that order. The result of a job does not depend on its
worker, so the number of workers does not change results.
"""

import ctypes
import gc
import os
import pickle
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from fedgh.core.types import Job, Reply
from fedgh.data.global_sample import GlobalSample
from fedgh.data.partition import Partition
from fedgh.data.public import PublicData
from fedgh.data.sources import Source
from fedgh.engines.device import device_of_worker, processes_for
from fedgh.engines.forkserver import no_interrupts, preload
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.errors import ConfigError, RunError
from fedgh.files import cannot_write
from fedgh.runs.checkpoint import ClientFiles

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # constants of glibc's malloc.h
SECONDS_BETWEEN_MESSAGES = 0.02
"""A worker sends its answers together if its last message was sent less than this time ago."""

SHARED_MEMORY = Path("/dev/shm")


class Workers:
    """The default engine: worker processes on one machine. `count` 0 means one per core or GPU."""

    def __init__(
        self, blueprint: Blueprint, files: ClientFiles, memory: int, count: int = 0
    ) -> None:
        share(
            blueprint.sources,
            blueprint.partition,
            blueprint.public,
            blueprint.global_sample,
            instead="use run.engine = 'serial'",
        )
        _return_memory()
        count = count or processes_for(blueprint.device, available_cores())
        count = min(count, blueprint.task.num_clients)
        self._cost = blueprint.cost
        context = worker_context()
        self._workers: list[tuple[BaseProcess, Connection]] = []
        parts = files.split(count)
        self.worker_of = {  # client -> number of its worker
            client: index for index, part in enumerate(parts) for client in part.clients
        }
        try:
            with no_interrupts():
                for index in range(count):
                    parent_end, worker_end = context.Pipe()
                    device = device_of_worker(blueprint.device, index)
                    process = context.Process(
                        target=_work,
                        args=(
                            worker_end,
                            replace(blueprint, device=device),
                            parts[index],
                            memory // count,
                        ),
                        name=f"fedgh-worker-{index}",
                        daemon=True,
                    )
                    process.start()
                    worker_end.close()
                    self._workers.append((process, parent_end))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise ConfigError(
                f"an object cannot be sent to worker processes ({error}); define it at the top "
                "level of an importable module, or use run.engine = 'serial'"
            ) from None

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Send all jobs to the workers, and return an iterator of the replies as they arrive."""
        queues: list[list[Job]] = [[] for _ in self._workers]
        load = [0.0] * len(queues)
        for cost, job in sorted(
            ((self._cost(job), job) for job in jobs), key=lambda item: -item[0]
        ):
            lightest = min(range(len(load)), key=load.__getitem__)
            worker = self.worker_of.get(job.client_id, lightest)
            # The other worker would finish the job before this one could start it.
            if load[worker] >= load[lightest] + cost:
                self.relocate(job.client_id, worker, lightest, job.round)
                worker = lightest
            self.worker_of[job.client_id] = worker
            queues[worker].append(job)
            load[worker] += cost
        position = {job.client_id: index for index, job in enumerate(jobs)}
        for worker, queue in enumerate(queues):
            self._send(worker, "run", sorted(queue, key=lambda job: position[job.client_id]))
        return self._answers(len(jobs))

    def save(self, round: int) -> None:
        """Tell every worker to write the states of its clients, and wait for all of them."""
        for worker in range(len(self._workers)):
            self._send(worker, "save", round)
        for _ in self._answers(len(self._workers)):
            pass

    def close(self) -> None:
        """End the workers at once; a segment that one of them is writing has no name yet."""
        for process, connection in self._workers:
            connection.close()
            process.terminate()
        for process, _ in self._workers:
            process.join()
        self._workers = []

    def relocate(self, client: int, origin: int, destination: int, round: int) -> None:
        """Move a client from one worker to another, between rounds."""
        self._send(origin, "remove", (client, round))
        (span,) = self._answers(1)
        if span is not None:
            self._send(destination, "adopt", (client, span))
            for _ in self._answers(1):  # until then the other worker must not delete the file
                pass

    def _send(self, worker: int, command: str, argument: object) -> None:
        process, connection = self._workers[worker]
        try:
            connection.send((command, argument))
        except OSError:
            raise _died(process) from None

    def _answers(self, count: int) -> Iterator[Any]:
        """Yield the next `count` answers of the workers, as they arrive."""
        processes = {connection: process for process, connection in self._workers}
        while count > 0:
            for ready in wait(list(processes)):
                assert isinstance(ready, Connection)
                try:
                    answers = ready.recv()
                except (EOFError, OSError):
                    raise _died(processes[ready]) from None
                for answer in answers:
                    if isinstance(answer, OSError):
                        raise cannot_write(answer)
                    if isinstance(answer, RunError):
                        raise answer
                    count -= 1
                    yield answer


def _work(connection: Connection, blueprint: Blueprint, files: ClientFiles, memory: int) -> None:
    """Run a worker process: execute commands until the parent closes the connection."""
    become_worker()
    host = ClientHost(blueprint, files, memory)
    try:
        while True:
            answers, sent = [], time.monotonic()
            for answer in _answer(host, files, *connection.recv()):
                answers.append(answer)
                if time.monotonic() > sent + SECONDS_BETWEEN_MESSAGES:
                    connection.send(answers)
                    answers, sent = [], time.monotonic()
            if answers:
                connection.send(answers)
    except (EOFError, OSError):
        return


def _answer(host: ClientHost, files: ClientFiles, command: str, argument: Any) -> Iterator[Any]:
    """Execute a command and yield its answers; an OSError or RunError is yielded, too."""
    try:
        if command == "run":
            files.delete_superseded()
            yield from map(host.run, argument)
        elif command == "remove":
            client, round = argument
            host.remove(client, round)
            yield files.forget(client)
        elif command == "adopt":
            files.adopt(*argument)
            yield None
        else:
            host.save(argument)
            yield None
    except (OSError, RunError) as error:
        yield error


def worker_context() -> Any:
    """Return the multiprocessing context that forks worker processes from the helper process."""
    preload()
    return torch.multiprocessing.get_context("forkserver")


def become_worker() -> None:
    """Configure this process for single-threaded computation with many tensors."""
    gc.freeze()  # a collection would touch all imported objects, and copy pages that are shared
    _keep_memory()
    torch.set_num_threads(1)


def _return_memory() -> None:
    """Return free memory of this process, which trains nothing, to the operating system.

    Networks have been made here to check the configuration. Only glibc has malloc_trim.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def _keep_memory() -> None:
    """Keep glibc from returning memory to the operating system after every batch.

    New pages are slow to get. With these settings large tensors are on the heap, which is never
    trimmed. Other C libraries have no mallopt; there this function does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _died(process: BaseProcess) -> RunError:
    # The run ends instead of continuing without these clients: a failure of the machine must not
    # change results, and a resumed run gives exactly those of an uninterrupted one.
    process.join(timeout=5)
    return RunError(
        f"a worker process ended unexpectedly (exit code {process.exitcode}; -9 often means too "
        "little memory). The last completed round is safe: continue with `fedgh resume`, perhaps "
        "with fewer workers or less run.memory. A program that starts a run must be a file, with "
        "its statements under `if __name__ == '__main__':`"
    )


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(
    sources: Iterable[Source],
    partition: Partition,
    public: PublicData | None,
    global_sample: GlobalSample | None = None,
    *,
    instead: str,
) -> None:
    """Move the data into shared memory; raise RunError if it is too small.

    `instead` is what the user may do without shared memory.
    """
    tensors = [partition.order, partition.bounds]
    for source in sources:
        tensors += [source.x, source.y]
    if global_sample is not None:
        tensors.append(global_sample.order)
    if public is not None:
        tensors += [public.x, public.y]
    wanted = sum(t.nbytes for t in tensors if not t.is_shared())
    if SHARED_MEMORY.exists() and wanted > (free := shutil.disk_usage(SHARED_MEMORY).free):
        raise RunError(
            f"the data need {wanted >> 20} MiB of shared memory, {SHARED_MEMORY} has "
            f"{free >> 20} MiB; enlarge it (docker: --shm-size) or {instead}"
        )
    for tensor in tensors:
        tensor.share_memory_()
