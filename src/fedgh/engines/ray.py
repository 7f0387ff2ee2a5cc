"""The engine that runs clients on a Ray cluster, on all its machines.

The driver writes a client's state to its disk as soon as the client has trained. Actors keep copies
only to avoid sending states. So an actor or a machine that fails loses nothing: another actor runs
its current job again, with the same bits as result. The machines need not share a disk.
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
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning of Ray

try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
except ImportError:
    raise ConfigError(f"run.engine = 'ray' needs Ray; {install('ray')}") from None

PATIENCE = 180.0
"""Seconds to wait for the first actor, or for a new one after all actors have failed."""

MAX_FAILED_STARTS = 5
"""Maximum number of failed starts in a row; a machine that has just failed can cause one."""


Waiting = defaultdict[Any, deque[Job]]
"""Jobs by the actor that has the newest state of their client; None if no actor has it."""


@dataclass
class Slot:
    """An actor and its current job."""

    actor: Any
    starting: Any  # Ray reference that resolves when the actor is ready; None afterwards
    job: Job | None = None
    answer: Any = None  # Ray reference to the result of the job


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
        self._connected = _connect(address, self._ray_folder.name)
        cores = ray.cluster_resources().get("CPU", 1)
        count = count or int(cores)
        self._count = min(count, blueprint.task.num_clients)
        self._memory = memory // self._count
        self._blueprint = ray.put(_pack(blueprint))
        self._failed_starts = 0
        self._holder: dict[int, Any] = {}  # client -> the actor that has its newest state
        self._slots = [self.start() for _ in range(self._count)]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Run the jobs in order, preferably on the actor that has the client; yield replies.

        Replies are yielded as soon as they arrive.
        """
        waiting: Waiting = defaultdict(deque)
        for job in jobs:
            waiting[self._holder.get(job.client_id)].append(job)
        remaining = len(jobs)
        while remaining:
            for slot in self._slots:
                if slot.starting is None and slot.job is None:
                    self._submit_next(slot, waiting)
            for slot in self._ready():
                reply = self._collect(slot, waiting)
                if reply is not None:
                    remaining -= 1
                    yield reply

    def save(self, round: int) -> None:
        """Make the states durable; they were written when their jobs ended."""
        with explaining():
            self._files.seal(round)

    def close(self) -> None:
        """End the actors, and the connection to Ray if this engine opened it."""
        for slot in self._slots:
            ray.kill(slot.actor)
        self._slots = []
        if self._connected:
            ray.shutdown()
        self._ray_folder.cleanup()

    def start(self) -> Slot:
        """Start an actor and return its slot; do not wait until it is ready."""
        actor = Actor.options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD").remote(  # type: ignore[attr-defined]
            self._blueprint, self._memory, self._files.run
        )
        return Slot(actor, actor.ready.remote())

    def _submit_next(self, slot: Slot, waiting: Waiting) -> None:
        """Send an idle actor its next job.

        The job of a client that the actor has is preferred, then that of a client that no actor
        has, then that of a client of the actor with the most waiting jobs.
        """
        busiest = max(waiting, key=lambda holder: len(waiting[holder]))
        for holder in (slot.actor, None, busiest):
            if waiting[holder]:
                self._submit(slot, waiting[holder].popleft())
                return

    def _submit(self, slot: Slot, job: Job, *, with_state: bool = False) -> None:
        """Send a job, with the client's state if the actor does not have it or `with_state`."""
        elsewhere = self._holder.get(job.client_id) is not slot.actor
        state = self._files.read(job.client_id) if elsewhere or with_state else None
        slot.job, slot.answer = job, slot.actor.run.remote(job, state)

    def _ready(self) -> list[Slot]:
        """Wait until at least one actor has started, answered or failed; return their slots."""
        by_ref = {slot.starting or slot.answer: slot for slot in self._slots}
        by_ref.pop(None, None)
        working = any(slot.job for slot in self._slots)
        done, _ = ray.wait(list(by_ref), timeout=None if working else PATIENCE)
        if not done:
            raise RunError(
                f"Ray has started no worker within {PATIENCE:.0f} s; the last completed round is "
                "safe: continue with `fedgh resume` when the cluster has free CPUs"
            )
        return [by_ref[ref] for ref in done]

    def _collect(self, slot: Slot, waiting: Waiting) -> Reply | None:
        """Return the reply of an actor, or None if it has not finished a job.

        The state that comes with the reply is written to disk. An actor that failed is replaced.
        """
        job = slot.job
        try:
            if slot.starting is not None:
                ray.get(slot.starting)
                slot.starting = None
                self._failed_starts = 0
                return None
            reply, state = ray.get(slot.answer)
        except (RayActorError, ObjectLostError) as error:
            self._replace(slot, waiting, error)
            return None
        except RayTaskError as error:
            cause = error.cause
            raise RunError(
                cause if isinstance(cause, RunError) else f"on the cluster: {cause}"
            ) from None
        assert job is not None
        if reply is None:  # the actor has evicted the client to make room for others
            self._submit(slot, job, with_state=True)
            return None
        slot.job = slot.answer = None
        if state is not None:
            with explaining():
                self._files.put(job.round, job.client_id, state)
            self._holder[job.client_id] = slot.actor
        answer: Reply = reply
        return answer

    def _replace(self, slot: Slot, waiting: Waiting, error: RayError) -> None:
        """Start a new actor for one that has failed; put its job back into the queue."""
        if slot.starting is not None:
            self._failed_starts += 1
            if self._failed_starts > MAX_FAILED_STARTS:
                raise RunError(f"workers on the cluster do not start: {_last_line(error)}")
        if slot.job is not None:
            waiting[None].appendleft(slot.job)
        ray.kill(slot.actor)  # it may still run, only out of reach
        self._holder = {c: actor for c, actor in self._holder.items() if actor is not slot.actor}
        self._slots[self._slots.index(slot)] = self.start()


class _StateTransfer:
    """The `Files` of an actor: states come from the driver with a job, and return to it."""

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
        self._trained: set[int] = set()  # clients of which this actor has had a trained state

    def ready(self) -> None:
        """Do nothing: the driver waits for this call to learn that the actor has started."""

    def run(self, job: Job, state: bytes | None) -> tuple[Reply | None, bytes | None]:
        """Run a job; return the reply, and the client's new state if it has changed.

        Return None instead of the reply if the actor had the client's state but has it no more: the
        driver then sends the job again, with the state.
        """
        client = job.client_id
        if state is not None:
            self._host.release(client, job.round)
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
    """Connect to Ray unless this process is connected already; return true if this call did.

    The address `local` starts Ray on this machine. Raise ConfigError if the connection fails.
    """
    if ray.is_initialized():
        return False
    try:
        host, _, port = address.partition(":")
        if port.isdigit():  # tried first, since Ray would retry for many minutes
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
        raise ConfigError(f"run.address = '{address}': {' '.join(str(error).split())}") from None
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
    light = replace(
        blueprint,
        sources=sources,
        partition=Partition(empty, empty),
        global_sample=sample,
        public=public,
    )
    return light, arrays


def _unpack(light: Blueprint, arrays: dict[str, Any]) -> Blueprint:
    """Return the blueprint with its tensors: the inverse of `_pack`."""
    tensors = {name: _readable(array) for name, array in arrays.items()}
    sources = []
    for number, source in enumerate(light.sources):
        x, y = _channels_first(tensors[f"x{number}"]), tensors[f"y{number}"]
        sources.append(replace(source, x=x, y=y))
    sample, public = light.global_sample, light.public
    if public is not None:
        x, y = _channels_first(tensors["public x"]), tensors["public y"]
        public = replace(public, x=x, y=y)
    return replace(
        light,
        sources=tuple(sources),
        partition=Partition(tensors["order"], tensors["bounds"]),
        global_sample=sample and replace(sample, order=tensors["sample"]),
        public=public,
    )


def _channels_last(x: Tensor) -> np.ndarray[Any, Any]:
    """Return inputs as a contiguous array: in memory, the channels of images are last already."""
    array: np.ndarray[Any, Any] = (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).numpy()
    return array


def _channels_first(x: Tensor) -> Tensor:
    """Return images with the channels first: the inverse of `_channels_last`."""
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def _readable(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor on a read-only array; fedgh only reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors
        return torch.from_numpy(array)
