"""Clients on a Ray cluster: thousands of them, on as many machines as there are.

A client's state is on the driver's disk as soon as it has trained; actors only keep copies, to save
the way. So nothing is lost with an actor or with a machine: the job that was going on is done again
elsewhere, to the same bits. The machines need not share a disk.
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

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that this runs
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default, quietly

try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
except ImportError:
    raise ConfigError(f"run.engine = 'ray' needs Ray; {install('ray')}") from None

PATIENCE = 180.0
"""Seconds to wait for a first actor, or for a new one when all are gone."""

MAX_FAILED_STARTS = 5
"""In a row; one may be a machine that has just gone."""


Waiting = defaultdict[Any, deque[Job]]
"""Jobs by the actor that has their client's newest state; None: they are nowhere yet."""


@dataclass
class Seat:
    """One actor, and what it is doing."""

    actor: Any
    starting: Any  # resolves when it is ready; None once it is
    job: Job | None = None
    answer: Any = None


class Ray:
    """The engine for a cluster."""

    def __init__(
        self,
        blueprint: Blueprint,
        files: ClientFiles,
        memory: int,
        count: int = 0,
        address: str = "local",
    ) -> None:
        self._files = files
        # Ray's own logs and sockets go when the run ends, if Ray was started for it.
        self._place = TemporaryDirectory(prefix="fedgh-ray-", ignore_cleanup_errors=True)
        self._connected = _connect(address, self._place.name)
        cores = ray.cluster_resources().get("CPU", 1)
        count = count or int(cores)
        self._count = min(count, blueprint.task.num_clients)
        self._memory = memory // self._count
        self._blueprint = ray.put(_pack(blueprint))
        self._failed_starts = 0
        self._home: dict[int, Any] = {}  # client -> the actor that has its newest state
        self._places = [self.start() for _ in range(self._count)]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Jobs in their order, each where its client is if possible; replies as they come."""
        waiting: Waiting = defaultdict(deque)
        for job in jobs:
            waiting[self._home.get(job.client_id)].append(job)
        remaining = len(jobs)
        while remaining:
            for place in self._places:
                if place.starting is None and place.job is None:
                    self._submit_next(place, waiting)
            for place in self._ready():
                reply = self._collect(place, waiting)
                if reply is not None:
                    remaining -= 1
                    yield reply

    def save(self, round: int) -> None:
        """All states are written already."""
        with explaining():
            self._files.seal(round)

    def close(self) -> None:
        """End the actors, and Ray itself if it was started here."""
        for place in self._places:
            ray.kill(place.actor)
        self._places = []
        if self._connected:
            ray.shutdown()
        self._place.cleanup()

    def start(self) -> Seat:
        """Start an actor."""
        actor = Actor.options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD").remote(  # type: ignore[attr-defined]
            self._blueprint, self._memory, self._files.run
        )
        return Seat(actor, actor.ready.remote())

    def _submit_next(self, place: Seat, waiting: Waiting) -> None:
        """A job of a client that is there, else of one that is nowhere, else of the busiest."""
        busiest = max(waiting, key=lambda home: len(waiting[home]))
        for home in (place.actor, None, busiest):
            if waiting[home]:
                self._submit(place, waiting[home].popleft())
                return

    def _submit(self, place: Seat, job: Job, *, state_too: bool = False) -> None:
        """Send a job; the client's state goes with it unless the actor should have it."""
        away = self._home.get(job.client_id) is not place.actor
        state = self._files.read(job.client_id) if away or state_too else None
        place.job, place.answer = job, place.actor.run.remote(job, state)

    def _ready(self) -> list[Seat]:
        """The places at which something has happened; wait until there is one."""
        by_ref = {place.starting or place.answer: place for place in self._places}
        by_ref.pop(None, None)
        working = any(place.job for place in self._places)
        done, _ = ray.wait(list(by_ref), timeout=None if working else PATIENCE)
        if not done:
            raise RunError(
                f"Ray has offered no worker for {PATIENCE:.0f} s; the last completed round is "
                "safe: go on with `fedgh resume` when the cluster has free CPUs"
            )
        return [by_ref[ref] for ref in done]

    def _collect(self, place: Seat, waiting: Waiting) -> Reply | None:
        """What an actor has to say; None if its job is still to be done."""
        job = place.job
        try:
            if place.starting is not None:
                ray.get(place.starting)
                place.starting = None
                self._failed_starts = 0
                return None
            reply, state = ray.get(place.answer)
        except (RayActorError, ObjectLostError) as error:
            self._replace(place, waiting, error)
            return None
        except RayTaskError as error:
            cause = error.cause
            raise RunError(
                cause if isinstance(cause, RunError) else f"on the cluster: {cause}"
            ) from None
        assert job is not None
        if reply is None:  # it has made room for others meanwhile
            self._submit(place, job, state_too=True)
            return None
        place.job = place.answer = None
        if state is not None:
            with explaining():
                self._files.put(job.round, job.client_id, state)
            self._home[job.client_id] = place.actor
        answer: Reply = reply
        return answer

    def _replace(self, place: Seat, waiting: Waiting, error: RayError) -> None:
        """A new actor for one that has died; somebody will do its job again."""
        if place.starting is not None:
            self._failed_starts += 1
            if self._failed_starts > MAX_FAILED_STARTS:
                raise RunError(f"workers on the cluster do not start: {_last_line(error)}")
        if place.job is not None:
            waiting[None].appendleft(place.job)
        ray.kill(place.actor)  # it may only have been out of reach
        self._home = {c: home for c, home in self._home.items() if home is not place.actor}
        self._places[self._places.index(place)] = self.start()


class _Handed:
    """States that came with a job, and states to be sent back."""

    def __init__(self) -> None:
        self.come: dict[int, Payload] = {}
        self.go: dict[int, Payload] = {}

    def load(self, client: int) -> Payload | None:
        """What the driver has sent."""
        return self.come.pop(client, None)

    def write(self, round: int, client: int, state: Payload) -> None:  # noqa: ARG002
        """Have a state sent to the driver."""
        self.go[client] = state

    def seal(self, round: int) -> None:
        """The driver does this."""


@ray.remote
class Actor:
    """A host on some machine."""

    def __init__(self, packed: tuple[Blueprint, dict[str, Any]], memory: int, run: str) -> None:
        become_worker()
        self._run_name = run
        self._states = _Handed()
        self._host = ClientHost(_unpack(*packed), self._states, memory)
        self._trained: set[int] = set()  # clients whose newest state was made or came here

    def ready(self) -> None:
        """Answer when there is something that can answer."""

    def run(self, job: Job, state: bytes | None) -> tuple[Reply | None, bytes | None]:
        """Do a job; without a state that is needed but gone from here, ask for it."""
        client = job.client_id
        if state is not None:
            self._host.release(client, job.round)
            self._states.come[client] = unpack(state)[1]
            self._trained.add(client)
        elif client in self._trained and not self._host.holds(client):
            return None, None
        reply = self._host.run(job)
        self._host.save(job.round)
        new = self._states.go.pop(client, None)
        if new is None:
            return reply, None
        self._trained.add(client)
        return reply, pack(new, client=client, round=job.round, run=self._run_name)


def _connect(address: str, place: str) -> bool:
    """Whether Ray was started or joined here, and is to be left at the end."""
    if ray.is_initialized():
        return False
    try:
        host, _, port = address.partition(":")
        if port.isdigit():  # Ray itself would try for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        own = {"include_dashboard": False, "_temp_dir": place} if address == "local" else {}
        ray.init(
            address=address,
            **own,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (RayError, OSError, ValueError) as error:
        raise ConfigError(f"run.address = '{address}': {' '.join(str(error).split())}") from None
    return True


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def _pack(blueprint: Blueprint) -> tuple[Blueprint, dict[str, Any]]:
    """A blueprint without tensors, and these as arrays: all actors of a machine read one copy."""
    none = torch.empty(0)
    arrays = {
        "order": blueprint.partition.order.numpy(),
        "bounds": blueprint.partition.bounds.numpy(),
    }
    sample = blueprint.global_sample
    if sample is not None:
        arrays["sample"] = sample.order.numpy()
        sample = replace(sample, order=none)
    for number, source in enumerate(blueprint.sources):
        arrays |= {f"x{number}": _as_it_lies(source.x), f"y{number}": source.y.numpy()}
    public = blueprint.public
    if public is not None:
        arrays |= {"public x": _as_it_lies(public.x), "public y": public.y.numpy()}
        public = replace(public, x=none, y=none)
    sources = tuple(replace(source, x=none, y=none) for source in blueprint.sources)
    light = replace(
        blueprint,
        sources=sources,
        partition=Partition(none, none),
        global_sample=sample,
        public=public,
    )
    return light, arrays


def _unpack(light: Blueprint, arrays: dict[str, Any]) -> Blueprint:
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


def _as_it_lies(x: Tensor) -> np.ndarray[Any, Any]:
    """Inputs as an array without gaps: the channels of images come last in memory."""
    array: np.ndarray[Any, Any] = (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).numpy()
    return array


def _channels_first(x: Tensor) -> Tensor:
    """The way back."""
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def _readable(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor that is only read, of an array that cannot be written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors
        return torch.from_numpy(array)
