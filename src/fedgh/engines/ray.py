"""The engine that runs clients on a Ray cluster, on all its machines.

The driver is the process that runs the server. It writes a client's state to its disk as soon as
the client has trained. Actors keep copies of states only to avoid sending them again. If an actor
or a machine fails, nothing is lost: another actor runs the job again and gives the same bits. The
machines need not share a disk.
"""

import logging
import os
import socket
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgh.core.types import Job, Payload, Reply
from fedgh.data.partition import Partition
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.engines.workers import become_worker
from fedgh.errors import ConfigError, RunError
from fedgh.extras import install
from fedgh.files import explaining
from fedgh.runs.checkpoint import ClientFiles
from fedgh.runs.sealed import pack, unpack

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage to its makers otherwise
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # prevents a warning of Ray

try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
except ImportError:
    raise ConfigError(f"run.engine = 'ray' needs Ray; {install('ray')}") from None

START_TIMEOUT = 180.0
"""Seconds to wait for the first actor, or for a new one after all actors have failed."""

MAX_FAILED_STARTS = 5
"""Failed starts in a row that the engine tolerates; a machine that just failed may cause some."""


MIN_OPERATIONS = 1e9
"""Short jobs are sent together until they have this cost, about 30 ms: a message takes 2 ms."""

MAX_JOBS = 64
"""Largest number of jobs in a message, so that replies keep arriving."""

Answer = tuple[Reply | None, bytes | None]
"""The reply to a job and the client's new state; no reply if the actor lacks its state."""

Waiting = defaultdict[Any, deque[Job]]
"""Waiting jobs, by the actor that has the client's newest state; under None if no actor has it."""


@dataclass
class Slot:
    """An actor and its current jobs."""

    actor: Any
    starting: Any  # Ray reference that resolves when the actor is ready; None afterwards
    jobs: Sequence[Job] = ()
    answer: Any = None  # Ray reference to the results of the jobs


class Ray:
    """The engine for a cluster; `count` is the number of actors, 0 for one per CPU."""

    def __init__(
        self,
        blueprint: Blueprint,
        files: ClientFiles,
        memory: int,
        count: int = 0,
        address: str = "local",
    ) -> None:
        self._files = files
        # For Ray's own logs and sockets if this engine starts Ray; deleted when the run ends.
        self._ray_folder = TemporaryDirectory(prefix="fedgh-ray-", ignore_cleanup_errors=True)
        self._owns_connection = _connect(address, self._ray_folder.name)
        cores = ray.cluster_resources().get("CPU", 1)
        count = count or int(cores)
        self._count = min(count, blueprint.task.num_clients)
        self._memory = memory // self._count
        self._cost = blueprint.cost
        self._blueprint = ray.put(_pack(blueprint))
        self._failed_starts = 0
        self._holder: dict[int, Any] = {}  # client -> the actor that has its newest state
        self._slots = [self.start() for _ in range(self._count)]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Run the jobs and yield each reply as soon as it arrives.

        A job preferably runs on the actor that has the client's newest state.
        """
        with explaining():
            self._files.delete_superseded()
        waiting: Waiting = defaultdict(deque)
        for job in jobs:
            waiting[self._holder.get(job.client_id)].append(job)
        remaining = len(jobs)
        while remaining:
            for slot in self._slots:
                if slot.starting is None and not slot.jobs:
                    self._submit_next(slot, waiting)
            for slot in self._ready():
                for reply in self._collect(slot, waiting):
                    remaining -= 1
                    yield reply

    def save(self, round: int) -> None:
        """Make the states durable; each was written when the client's job ended."""
        with explaining():
            self._files.seal(round)

    def close(self) -> None:
        """End the actors, and the connection to Ray if this engine opened it."""
        for slot in self._slots:
            ray.kill(slot.actor)
        self._slots = []
        if self._owns_connection:
            ray.shutdown()
        self._ray_folder.cleanup()

    def start(self) -> Slot:
        """Start an actor and return its slot; do not wait until it is ready."""
        actor = Actor.options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD").remote(  # type: ignore[attr-defined]
            self._blueprint, self._memory, self._files.run
        )
        return Slot(actor, actor.ready.remote())

    def _submit_next(self, slot: Slot, waiting: Waiting) -> None:
        """Send the next jobs to an idle actor, several if they are short.

        The first of these groups that has a job is used:

        1. clients whose state this actor has,
        2. clients whose state no actor has,
        3. clients whose state the actor with the most waiting jobs has.
        """
        busiest = max(waiting, key=lambda holder: len(waiting[holder]))
        for holder in (slot.actor, None, busiest):
            if waiting[holder]:
                self._submit(slot, self._next_jobs(waiting[holder]))
                return

    def _next_jobs(self, queue: deque[Job]) -> list[Job]:
        """Remove and return jobs that are worth a message, but leave some for other actors."""
        most = min(MAX_JOBS, 1 + len(queue) // (2 * self._count))
        jobs = [queue.popleft()]
        cost = self._cost(jobs[0])
        while queue and len(jobs) < most and cost < MIN_OPERATIONS:
            jobs.append(queue.popleft())
            cost += self._cost(jobs[-1])
        return jobs

    def _submit(self, slot: Slot, jobs: Sequence[Job], *, with_states: bool = False) -> None:
        """Send jobs; add the states that the actor lacks, or all if `with_states` is true."""
        lacking = [with_states or self._holder.get(job.client_id) is not slot.actor for job in jobs]
        states = [
            self._files.read(job.client_id) if lacks else None
            for job, lacks in zip(jobs, lacking, strict=True)
        ]
        slot.jobs, slot.answer = jobs, slot.actor.run.remote(jobs, states)

    def _ready(self) -> list[Slot]:
        """Wait until at least one actor has started, answered or failed; return their slots."""
        by_ref = {slot.starting or slot.answer: slot for slot in self._slots}
        by_ref.pop(None, None)
        working = any(slot.jobs for slot in self._slots)
        done, _ = ray.wait(list(by_ref), timeout=None if working else START_TIMEOUT)
        if not done:
            raise RunError(
                f"Ray has started no worker within {START_TIMEOUT:.0f} s; the last completed round "
                "is safe: continue with `fedgh resume` when the cluster has free CPUs"
            )
        return [by_ref[ref] for ref in done]

    def _collect(self, slot: Slot, waiting: Waiting) -> list[Reply]:
        """Return the replies of an actor; none if it has just started or failed.

        Write the states that come with them to disk. Send jobs again for which the actor lacks a
        state. Replace an actor that failed.
        """
        try:
            if slot.starting is not None:
                ray.get(slot.starting)
                slot.starting = None
                self._failed_starts = 0
                return []
            answers: list[Answer] = ray.get(slot.answer)
        except (RayActorError, ObjectLostError) as error:
            self._replace(slot, waiting, error)
            return []
        except RayTaskError as error:
            cause = error.cause
            raise RunError(
                cause if isinstance(cause, RunError) else f"on the cluster: {cause}"
            ) from None
        jobs, slot.jobs, slot.answer = slot.jobs, (), None
        for job, (_, state) in zip(jobs, answers, strict=True):
            if state is not None:
                with explaining():
                    self._files.put(job.round, job.client_id, state)
                self._holder[job.client_id] = slot.actor
        again = [job for job, (reply, _) in zip(jobs, answers, strict=True) if reply is None]
        if again:  # the actor no longer has the states of these clients
            self._submit(slot, again, with_states=True)
        return [reply for reply, _ in answers if reply is not None]

    def _replace(self, slot: Slot, waiting: Waiting, error: RayError) -> None:
        """Start a new actor for one that has failed; put its job back into the queue."""
        if slot.starting is not None:
            self._failed_starts += 1
            if self._failed_starts > MAX_FAILED_STARTS:
                raise RunError(f"workers on the cluster do not start: {_last_line(error)}")
        waiting[None].extendleft(reversed(slot.jobs))
        ray.kill(slot.actor)  # the actor may still run on a machine that cannot be reached
        self._holder = {c: actor for c, actor in self._holder.items() if actor is not slot.actor}
        self._slots[self._slots.index(slot)] = self.start()


class _StateTransfer:
    """The `Files` of an actor: the driver sends states with jobs and receives them with replies."""

    def __init__(self) -> None:
        self.incoming: dict[int, Payload] = {}
        self.outgoing: dict[int, Payload] = {}

    def load(self, client: int) -> Payload | None:
        """Return the state that the driver sent, or None."""
        return self.incoming.pop(client, None)

    def write(self, round: int, client: int, state: Payload) -> None:  # noqa: ARG002
        """Store a state, to be sent to the driver."""
        self.outgoing[client] = state

    def seal(self, round: int) -> None:
        """Do nothing: the driver makes states durable."""


@ray.remote
class Actor:
    """A host in a process of the cluster."""

    def __init__(self, packed: tuple[Blueprint, dict[str, Any]], memory: int, run: str) -> None:
        become_worker()
        self._run_name = run
        self._states = _StateTransfer()
        self._host = ClientHost(_unpack(*packed), self._states, memory)
        self._trained: set[int] = set()  # clients whose trained state this actor has had

    def ready(self) -> None:
        """Do nothing: the driver waits for this call to learn that the actor has started."""

    def run(self, jobs: Sequence[Job], states: Sequence[bytes | None]) -> list[Answer]:
        """Run jobs, given the states of some of their clients."""
        return [self._run(job, state) for job, state in zip(jobs, states, strict=True)]

    def _run(self, job: Job, state: bytes | None) -> Answer:
        """Run a job; return the reply, and the client's new state if it has changed.

        Return None instead of the reply if the actor had the client's state but has removed it from
        memory. The driver then sends the job again, with the state.
        """
        client = job.client_id
        if state is not None:
            self._host.remove(client, job.round)
            self._states.incoming[client] = unpack(state)[1]
            self._trained.add(client)
        elif client in self._trained and not self._host.holds(client):
            return None, None
        reply = self._host.run(job)
        self._host.save(job.round)
        new = self._states.outgoing.pop(client, None)
        if new is None:
            return reply, None
        self._trained.add(client)
        return reply, pack(new, client=client, round=job.round, run=self._run_name)


def _connect(address: str, temp_folder: str) -> bool:
    """Connect to Ray, and return true; return false if this process is connected already.

    The address `local` starts Ray on this machine. Raise ConfigError if the connection fails.
    """
    if ray.is_initialized():
        return False
    if address.startswith("ray://"):  # Ray Client: it sends no code, and states go through a proxy
        raise ConfigError(
            f"run.address = '{address}': start fedgh on a machine of the cluster instead, with "
            "run.address = 'auto', or host:port of the head node"
        )
    try:
        host, _, port = address.partition(":")
        if port.isdigit():  # test the address first: Ray would retry for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        options: dict[str, Any] = {}
        if address == "local":
            options = {"include_dashboard": False, "_temp_dir": temp_folder}
        ray.init(
            address=address,
            **options,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (RayError, OSError, ValueError) as error:
        raise ConfigError(
            f"run.address = '{address}': {' '.join(str(error).split())}; is Ray running there "
            "(`ray status`)?"
        ) from None
    return True


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def _pack(blueprint: Blueprint) -> tuple[Blueprint, dict[str, Any]]:
    """Return a blueprint without its tensors, and the tensors as arrays.

    Ray keeps arrays in shared memory, so that all actors of a machine read one copy.
    """
    empty = torch.empty(0)
    arrays = {
        "order": blueprint.partition.order.numpy(),
        "bounds": blueprint.partition.bounds.numpy(),
    }
    sample = blueprint.global_sample
    if sample is not None:
        arrays["sample"] = sample.order.numpy()
        sample = replace(sample, order=empty)
    for number, source in enumerate(blueprint.sources):
        arrays |= {f"x{number}": _channels_last(source.x), f"y{number}": source.y.numpy()}
    public = blueprint.public
    if public is not None:
        arrays |= {"public x": _channels_last(public.x), "public y": public.y.numpy()}
        public = replace(public, x=empty, y=empty)
    sources = tuple(replace(source, x=empty, y=empty) for source in blueprint.sources)
    without_tensors = replace(
        blueprint,
        sources=sources,
        partition=Partition(empty, empty),
        global_sample=sample,
        public=public,
    )
    return without_tensors, arrays


def _unpack(without_tensors: Blueprint, arrays: dict[str, Any]) -> Blueprint:
    """Return the blueprint with its tensors: the inverse of `_pack`."""
    tensors = {name: _as_tensor(array) for name, array in arrays.items()}
    sources = []
    for number, source in enumerate(without_tensors.sources):
        x, y = _channels_first(tensors[f"x{number}"]), tensors[f"y{number}"]
        sources.append(replace(source, x=x, y=y))
    sample, public = without_tensors.global_sample, without_tensors.public
    if public is not None:
        x, y = _channels_first(tensors["public x"]), tensors["public y"]
        public = replace(public, x=x, y=y)
    return replace(
        without_tensors,
        sources=tuple(sources),
        partition=Partition(tensors["order"], tensors["bounds"]),
        global_sample=sample and replace(sample, order=tensors["sample"]),
        public=public,
    )


def _channels_last(x: Tensor) -> np.ndarray[Any, Any]:
    """Return inputs as an array; the channels of images come last, as they are stored in memory."""
    array: np.ndarray[Any, Any] = (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).numpy()
    return array


def _channels_first(x: Tensor) -> Tensor:
    """Return images with the channels first: the inverse of `_channels_last`."""
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def _as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor that shares the memory of a read-only array; fedgh never writes to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns about read-only arrays
        return torch.from_numpy(array)
