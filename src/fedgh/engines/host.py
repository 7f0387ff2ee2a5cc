"""A host keeps clients and does their jobs: the part that all engines share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.attack import Attack
from fedgh.core.local import eval_mode, evaluate
from fedgh.core.message import Shapes
from fedgh.core.method import RELEASE, Method
from fedgh.core.metrics import METRICS, NEEDED, scores
from fedgh.core.rng import isolated
from fedgh.core.types import (
    CPU,
    Client,
    Examples,
    Job,
    LocalTraining,
    Payload,
    Reply,
    Task,
    moved,
    part,
    prefixed,
)
from fedgh.data.global_sample import GlobalSample
from fedgh.data.partition import Partition
from fedgh.data.public import PublicData
from fedgh.data.sources import Source
from fedgh.errors import MethodError, RunError, WireError, one_line
from fedgh.models import Extractor, split_model
from fedgh.models.cost import forward_flops
from fedgh.privacy.mechanism import Privacy

PHASES = ("train", "summarise", "evaluate")
"""Phases of a client's work that every method has."""


@dataclass(frozen=True)
class Blueprint:
    """All that is needed to make any client of the federation."""

    task: Task
    method: Method
    local: LocalTraining
    extractors: tuple[Extractor, ...]  # dealt round-robin
    sources: tuple[Source, ...]  # dealt round-robin, too: one for all, or each client its own
    partition: Partition  # of the samples of a client's source
    global_sample: GlobalSample | None = None  # test data of all clients, if they are here
    device: torch.device = CPU
    privacy: Privacy | None = None
    withhold_metrics: bool = False  # of what clients measure, only accuracies are told
    max_norm: float = math.inf  # of a row in what the server sends
    attack: Attack = field(default_factory=Attack)  # a rehearsal: some clients lie
    public: PublicData | None = None  # samples that all clients know
    _flops: dict[int, int] = field(default_factory=dict, init=False)
    _specs: dict[int, tuple[list[wire.Spec], list[wire.Spec]]] = field(
        default_factory=dict, init=False
    )

    def source(self, client_id: int) -> Source:
        """Where the client's samples are."""
        return self.sources[client_id % len(self.sources)]

    def flops(self, client_id: int) -> int:
        """What one input costs the client."""
        kind = self._kind(client_id)
        if kind not in self._flops:
            task = replace(self.task, input_shape=self.source(kind).shape)
            self._flops[kind] = forward_flops(self.extractors[kind % len(self.extractors)], task)
        return self._flops[kind]

    def _kind(self, client_id: int) -> int:
        """Return one number for all clients with the same network and shape of inputs."""
        return client_id % math.lcm(len(self.extractors), len(self.sources))

    def specs(self, client: Client) -> tuple[list[wire.Spec], list[wire.Spec]]:
        """Return the specs of downloads and of uploads, worked out once for each network."""
        kind, shapes = self._kind(client.id), Shapes.of(client)
        if kind not in self._specs:
            specs = self.method.download_specs(shapes), self.method.upload_specs(shapes)
            self._specs[kind] = specs
        return self._specs[kind]

    def cost(self, job: Job) -> float:
        """About how much there is to compute: good enough to share jobs out evenly."""
        train, validation, test = self.partition.bounds[job.client_id].diff().tolist()
        forward = (validation + test) * job.evaluate
        if job.evaluate_globally and self.global_sample is not None:
            forward += self.global_sample.size
        if job.down is not None:  # backward costs twice as much as forward, then come the means
            forward += train * (3 * self.local.epochs + 1)
        return float(forward * self.flops(job.client_id))

    def make(self, client_id: int) -> Client:
        """The client as it is before its first round: a function of the seed alone."""
        task = self.task
        make_model = partial(split_model, self.extractors[client_id % len(self.extractors)], task)
        with isolated(task.seed, "model", client_id):
            model = make_model()
        source = self.source(client_id)
        data = self.partition.data(client_id, source.x, source.y)
        client = Client(
            client_id,
            task,
            model,
            data,
            self.local,
            make_model=make_model,
            privacy=self.privacy,
            public_examples=self.public.examples() if self.public else None,
        )
        with isolated(task.seed, "init-client", client_id):
            self.method.init_client(client)
        client.to(self.device)
        return client


class Files(Protocol):
    """Where the states of clients are while they are not in memory."""

    def load(self, client: int) -> Payload | None:
        """The client's last state; None when it never took part."""

    def write(self, round: int, client: int, state: Payload) -> None:
        """Keep a client's state after `round`."""

    def seal(self, round: int) -> None:
        """Make sure of all that was written: `round` is about to be committed."""


class ClientHost:
    """Clients made when first needed, kept in memory while there is room, saved on demand."""

    def __init__(
        self,
        blueprint: Blueprint,
        files: Files,
        memory: int = 2**62,
        explain: Callable[[Exception], str] | None = None,
        released: Payload | None = None,
    ) -> None:
        self.blueprint = blueprint
        self.memory = memory  # bytes
        self._explain = explain or one_line  # what the server is told of a failure
        self._released = released or {}  # statistics that left the client before, see `released`
        self._files = files
        self.kept: dict[int, Client] = {}  # the one used last comes last
        self._changed: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._used = 0
        if blueprint.device.type == "cuda":
            torch.backends.cudnn.deterministic = True  # so that a resumed run repeats itself

    def run(self, job: Job) -> Reply:
        """Train and judge a client, then make room for the next."""
        reply = self._run(job)
        client = self.kept.get(job.client_id)
        if client is not None:
            self._used += client.nbytes - self._sizes.get(client.id, 0)
            self._sizes[client.id] = client.nbytes
        while self._used > self.memory:
            self._leave(next(iter(self.kept)), job.round)
        return reply

    def release(self, client_id: int, round: int) -> None:
        """Let go of a client; its state is written if it is nowhere else."""
        if client_id in self.kept:
            self._leave(client_id, round)

    def holds(self, client_id: int) -> bool:
        """Whether a client is in memory."""
        return client_id in self.kept

    def released(self, client_id: int) -> Payload:
        """Return the statistics that a client sends whenever it is asked, if its method has some.

        They outlive the client's state: drawn again, their noise could be averaged away.
        """
        return part(self._client(client_id, keep=True).memory, RELEASE)

    def will_release(self, client_id: int) -> bool:
        """Tell if the client's next update tells of its data anew."""
        return self.blueprint.method.will_release(self._client(client_id, keep=True))

    def save(self, round: int) -> None:
        """Write the clients that have changed since the last time."""
        for client in sorted(self._changed):
            self._files.write(round, client, self.kept[client].state())
        self._changed.clear()
        self._files.seal(round)

    def _leave(self, client_id: int, round: int) -> None:
        client = self.kept.pop(client_id)
        self._used -= self._sizes.pop(client_id, 0)
        if client_id in self._changed:
            self._files.write(round, client_id, client.state())
            self._changed.remove(client_id)

    def _run(self, job: Job) -> Reply:
        """What a client's code raises becomes part of the reply."""
        try:
            client = self._client(job.client_id, keep=job.down is not None)
        except RunError:  # its state cannot be read: the machine's trouble, not the client's
            raise
        except Exception as problem:  # a client's code may raise anything
            return Reply(job.client_id, job.round, error=self._explain(problem))
        client.round, client.metrics, client.seconds = job.round, {}, {}
        up: bytes | None = None
        metrics: dict[str, float] = {}
        errors: list[str] = []
        with isolated(client.task.seed, "client", client.id, job.round):
            if job.down is not None:
                before = client.state()
                try:
                    up = self._train(client, job.down, before)
                    metrics = _own_metrics(client.metrics)
                except Exception as problem:
                    up, client = None, self._restored(client, before)
                    errors.append(self._explain(problem))
            if self.blueprint.withhold_metrics:  # nothing bounds what these numbers tell
                metrics = {}
            try:
                if job.evaluate:
                    metrics |= self._evaluate(client)
                if job.evaluate_globally and (up is not None or job.trained):
                    metrics |= self._evaluate_globally(client)
            except Exception as problem:
                errors.append(self._explain(problem))
        return Reply(
            client_id=client.id,
            round=job.round,
            num_examples=len(client.data.train) if self.blueprint.method.weighs_by_examples else 0,
            up=up,
            metrics=_finite(metrics),
            seconds=self._seconds(client),
            error="; ".join(errors) or None,
        )

    def _seconds(self, client: Client) -> dict[str, float]:
        """Return the seconds of each phase; with privacy only of phases that every method has."""
        known = PHASES if self.blueprint.withhold_metrics else client.seconds
        return {phase: client.seconds[phase] for phase in known if phase in client.seconds}

    def _restored(self, client: Client, before: Payload) -> Client:
        """Return the client in its state before a round that failed."""
        self._changed.discard(client.id)
        try:
            client.load(before)
        except RuntimeError:  # its method has changed its networks, too
            fresh = self.blueprint.make(client.id)
            fresh.load(before)
            fresh.round, fresh.seconds = client.round, client.seconds
            client = self.kept[client.id] = fresh
        return client

    def _client(self, client_id: int, keep: bool) -> Client:
        """The client, made or loaded if need be; one that is only looked at is not kept."""
        if client_id in self.kept:
            client = self.kept.pop(client_id)
            self.kept[client_id] = client
            return client
        client = self.blueprint.make(client_id)
        state = self._files.load(client_id)
        if state is not None:
            client.load(state)
        client.memory.update(moved(prefixed(RELEASE, self._released), client.device))
        if keep:
            self.kept[client_id] = client
        return client

    def _train(self, client: Client, down: bytes, before: Payload) -> bytes:
        blueprint = self.blueprint
        method, (for_down, for_up) = blueprint.method, blueprint.specs(client)
        sent = wire.read(down, for_down, blueprint.max_norm)
        method.down.check(sent)
        eval_mode(client)  # a client that was just read from its file starts alike
        upload = moved(method.client_update(client, moved(sent, client.device)), CPU)
        _check_declared(method, for_up, upload)
        if blueprint.privacy is not None:
            method.up.check_private(client, upload)
        _check_state(client, before)
        up = wire.to_bytes(blueprint.attack.poison(client, upload))
        self._changed.add(client.id)
        return up

    def _evaluate(self, client: Client) -> dict[str, float]:
        predict, data = self.blueprint.method.logits, client.data
        found = scores(evaluate(client, predict, data.test), "test")
        found |= scores(evaluate(client, predict, data.validation), "validation")
        return {name: found[name] for name in NEEDED} if self.blueprint.withhold_metrics else found

    def _evaluate_globally(self, client: Client) -> dict[str, float]:
        sample = self.blueprint.global_sample
        if sample is None:
            return {}
        (pool,) = self.blueprint.sources
        all_classes = Examples(pool.x, pool.y, sample.indices(client.id))
        predict = self.blueprint.method.global_logits
        return scores(evaluate(client, predict, all_classes), "all classes")


def _check_declared(method: Method, specs: list[wire.Spec], upload: Payload) -> None:
    """Raise unless an upload is as the method declares it: a mistake never leaves the client."""
    try:
        wire.check_shapes(upload, specs)
    except WireError as error:
        raise MethodError(f"{method.name} sends what `up` does not declare: {error}") from None


def _check_state(client: Client, before: Payload) -> None:
    """Raise unless the state after an update can be kept: finite, with the networks it had."""
    state = client.live_state()
    networks = [{n for n in each if not n.startswith("memory.")} for each in (before, state)]
    if networks[0] != networks[1]:
        raise MethodError("the client's networks changed in client_update: init_client makes them")
    for name, tensor in state.items():
        if not _is_finite(tensor) and (name not in before or _is_finite(before[name])):
            raise FloatingPointError(f"'{name}' of the client is not finite any more")


def _is_finite(tensor: Tensor) -> bool:
    """Tell if a tensor has neither infinity nor NaN."""
    return bool(tensor.isfinite().all())


def _own_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """A method's own numbers; what an evaluation measures is not for a method to say."""
    return _finite({name: value for name, value in metrics.items() if name not in METRICS})


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """What can be averaged: a method's own number may be a division by zero."""
    numbers = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
