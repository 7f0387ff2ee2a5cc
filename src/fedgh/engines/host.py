"""The host: it creates clients, keeps them in memory and runs their jobs. All engines use it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Protocol

import torch

from fedgh.core import wire
from fedgh.core.attack import Attack
from fedgh.core.finite import all_finite
from fedgh.core.local import eval_mode, evaluate
from fedgh.core.message import Shapes
from fedgh.core.method import RELEASE, Method
from fedgh.core.metrics import METRICS, NEEDED, scores
from fedgh.core.rng import isolated
from fedgh.core.sums import NUMBERS, Scale, Summation
from fedgh.core.types import (
    CPU,
    Client,
    Examples,
    Job,
    LocalTraining,
    Payload,
    Reply,
    SplitModel,
    Task,
    copied,
    moved,
    part,
    prefixed,
)
from fedgh.data.global_sample import GlobalSample
from fedgh.data.partition import Partition
from fedgh.data.public import PublicData
from fedgh.data.published import Published
from fedgh.data.sources import Source
from fedgh.engines.device import repeatable
from fedgh.errors import MethodError, RunError, WireError, one_line
from fedgh.models import Extractor, split_model
from fedgh.models.cost import estimated_flops
from fedgh.privacy.mechanism import Privacy

PHASES = ("train", "summarise", "evaluate")
"""Phases of a client's work that every method has, as named in the records of a run."""


@dataclass(frozen=True)
class Blueprint:
    """Everything that is needed to create any client of the federation."""

    task: Task
    method: Method
    local: LocalTraining
    extractors: tuple[Extractor, ...]  # client k has extractors[k % len(extractors)]
    sources: tuple[Source, ...]  # data: one source for all clients, or one for each client
    partition: Partition  # assigns the samples of a source to its clients
    global_sample: GlobalSample | None = None  # test samples of all clients, if available here
    device: torch.device = CPU
    privacy: Privacy | None = None
    withhold_metrics: bool = False  # clients report accuracies and no other metrics
    max_norm: float = math.inf  # largest norm of a row that a client accepts in a download
    attack: Attack = field(default_factory=Attack)  # by malicious clients, in a rehearsal
    public: PublicData | None = None  # samples known to all clients
    published: Published = field(default_factory=Published)
    scale: Scale | None = None  # of uploads that are masked and added up; None: they are not
    _flops: dict[int, int] = field(default_factory=dict, init=False)
    _specs: dict[int, tuple[list[wire.Spec], list[wire.Spec]]] = field(
        default_factory=dict, init=False
    )
    _summations: dict[int, Summation] = field(default_factory=dict, init=False)

    @property
    def weight_is_sent(self) -> bool:
        """True if clients tell the server their numbers of samples; in a sum they are hidden."""
        return self.method.weighs_by_examples and self.scale is None

    def source(self, client_id: int) -> Source:
        """Return the data source that has the client's samples."""
        return self.sources[client_id % len(self.sources)]

    def flops(self, client_id: int) -> int:
        """Return about the operations of the client's network for one input."""
        kind = self._kind(client_id)
        if kind not in self._flops:
            task = replace(self.task, input_shape=self.source(kind).shape)
            self._flops[kind] = estimated_flops(self.extractors[kind % len(self.extractors)], task)
        return self._flops[kind]

    def _kind(self, client_id: int) -> int:
        """Return the kind of a client: clients of a kind have the same network and input shape.

        A kind is the number of the first client of this kind.
        """
        return client_id % math.lcm(len(self.extractors), len(self.sources))

    def specs(self, client: Client) -> tuple[list[wire.Spec], list[wire.Spec]]:
        """Return the specs of downloads and of uploads, computed once for each kind of client."""
        kind, shapes = self._kind(client.id), Shapes.of(client)
        if kind not in self._specs:
            specs = self.method.download_specs(shapes), self.method.upload_specs(shapes)
            self._specs[kind] = specs
        return self._specs[kind]

    def summation(self, client: Client) -> Summation:
        """Return how uploads are added up, computed once for each kind of client."""
        assert self.scale is not None
        kind = self._kind(client.id)
        if kind not in self._summations:
            shapes = Shapes.of(client)
            self._summations[kind] = self.method.up.summation(self.method, shapes, self.scale)
        return self._summations[kind]

    def cost(self, job: Job) -> float:
        """Return an estimate of a job's operations, used to distribute jobs evenly.

        It counts forward passes; training on a batch costs as much as three of them.
        """
        train, validation, test = self.partition.bounds[job.client_id].diff().tolist()
        forward = (validation + test) * job.evaluate
        if job.evaluate_globally and self.global_sample is not None:
            forward += self.global_sample.size
        if job.down is not None:  # per sample: 3 for each epoch, 1 for the class means
            forward += train * (3 * self.local.epochs + 1)
        return float(forward * self.flops(job.client_id))

    def make(self, client_id: int) -> Client:
        """Return a client in its initial state, which depends only on the seed."""
        task = self.task
        make_model = partial(split_model, self.extractors[client_id % len(self.extractors)], task)
        drawn = client_id
        if self.published.first_weights:  # one draw for all clients with the same network
            drawn %= len(self.extractors)
        with isolated(task.seed, "model", drawn):
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
    """Storage for the states of clients that are not in memory."""

    def load(self, client: int) -> Payload | None:
        """Return the client's last state, or None if the client was never a participant."""

    def write(self, round: int, client: int, state: Payload) -> None:
        """Store a client's state after `round`."""

    def seal(self, round: int) -> None:
        """Make all written states durable, before the server commits `round`."""


class ClientHost:
    """Clients that are created when first needed and kept in memory up to `memory` bytes.

    `explain` converts an exception of a client to the error text that the server receives.
    `released` are noisy statistics that the client sent in an earlier process and must send again
    unchanged; the method `released` returns them.
    """

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
        self._explain = explain or one_line
        self._released = released or {}
        self._files = files
        self.clients: dict[int, Client] = {}  # in memory; the most recently used is last
        # The states of these clients, without copies: to collect one takes longer than to use it.
        self._live: dict[int, Payload] = {}
        self._changed: set[int] = set()
        self._last_trained: dict[int, SplitModel] = {}  # for each network, with first_weights
        self._used = 0
        repeatable(blueprint.device)  # also in a worker process, which has not found it itself

    def run(self, job: Job) -> Reply:
        """Run a client's job, then move the least recently used clients to files if necessary."""
        reply = self._run(job)
        while self._used > self.memory:
            self._evict(next(iter(self.clients)), job.round)
        return reply

    def remove(self, client_id: int, round: int) -> None:
        """Remove a client from memory; write its state if the state has changed."""
        if client_id in self.clients:
            self._evict(client_id, round)

    def holds(self, client_id: int) -> bool:
        """Return true if a client is in memory."""
        return client_id in self.clients

    def released(self, client_id: int) -> Payload:
        """Return the noisy statistics that a client sends unchanged in every round, or {}.

        They must be stored longer than the client's state: if their noise were drawn again, the
        server could average it away.
        """
        return part(self._client(client_id, keep=True).memory, RELEASE)

    def will_release(self, client_id: int) -> bool:
        """Return true if the client's next upload is a new release about its data."""
        return self.blueprint.method.will_release(self._client(client_id, keep=True))

    def save(self, round: int) -> None:
        """Write the states of the clients that have changed since the last save."""
        for client in sorted(self._changed):
            self._write(round, client)
        self._changed.clear()
        self._files.seal(round)

    def _evict(self, client_id: int, round: int) -> None:
        if client_id in self._changed:
            self._write(round, client_id)
            self._changed.remove(client_id)
        del self.clients[client_id]
        self._used -= _size(self._live.pop(client_id))

    def _write(self, round: int, client_id: int) -> None:
        self._files.write(round, client_id, moved(self._live[client_id], CPU))

    def _run(self, job: Job) -> Reply:
        """Run a job; an exception in the client's code becomes the error of the reply."""
        try:
            client = self._client(job.client_id, keep=job.down is not None)
        except RunError:  # the state's file cannot be read: this ends the run, not only the job
            raise
        except Exception as problem:  # a client's code may raise any exception
            return Reply(job.client_id, job.round, error=self._explain(problem))
        client.round, client.metrics, client.seconds = job.round, {}, {}
        up: bytes | None = None
        metrics: dict[str, float] = {}
        errors: list[str] = []
        with isolated(client.task.seed, "client", client.id, job.round):
            if job.down is not None:
                self._inherit(client, job)
                before = copied(self._live[client.id])
                try:
                    up = self._train(client, job.down, before)
                    metrics = _own_metrics(client.metrics)
                except Exception as problem:
                    up, client = None, self._restored(client, before)
                    errors.append(self._explain(problem))
                del before  # its memory is free for the evaluation
                self._pass_on(client, job)
            if self.blueprint.withhold_metrics:
                metrics = {}  # differential privacy does not cover the method's own metrics
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
            num_examples=len(client.data.train) if self.blueprint.weight_is_sent else 0,
            up=up,
            metrics=_finite(metrics),
            seconds=self._seconds(client),
            error="; ".join(errors) or None,
        )

    def _inherit(self, client: Client, job: Job) -> None:
        """In the first round, go on from what the previous client with the same network trained.

        As in the published code, whose clients share one network object in that round.
        """
        previous = self._last_trained.get(self._network(client)) if job.round == 1 else None
        if previous is not None:
            client.model.load_state_dict(previous.state_dict())

    def _pass_on(self, client: Client, job: Job) -> None:
        """Keep the client's network for the next client with the same one, also if it is evicted.

        In later rounds there is no next one, and nothing is kept.
        """
        if self.blueprint.published.first_weights and job.round == 1:
            self._last_trained[self._network(client)] = client.model
        else:
            self._last_trained.clear()

    def _network(self, client: Client) -> int:
        return client.id % len(self.blueprint.extractors)

    def _seconds(self, client: Client) -> dict[str, float]:
        """Return the seconds of each phase; if metrics are withheld, only of those in PHASES."""
        phases = PHASES if self.blueprint.withhold_metrics else client.seconds
        return {phase: client.seconds[phase] for phase in phases if phase in client.seconds}

    def _restored(self, client: Client, before: Payload) -> Client:
        """Return the client in its state before a round that failed."""
        try:
            client.load(before)
        except RuntimeError:  # the method replaced the networks, so the old state does not fit
            fresh = self.blueprint.make(client.id)
            fresh.load(before)
            fresh.round, fresh.seconds = client.round, client.seconds
            client = self.clients[client.id] = fresh
        self._keep(client, client.live_state())
        return client

    def _client(self, client_id: int, keep: bool) -> Client:
        """Return a client from memory, or else create it and load its state.

        With `keep` it stays in memory; a client that is only evaluated does not.
        """
        if client_id in self.clients:
            client = self.clients.pop(client_id)
            self.clients[client_id] = client
            return client
        client = self.blueprint.make(client_id)
        state = self._files.load(client_id)
        if state is not None:
            client.load(state)
        client.memory.update(moved(prefixed(RELEASE, self._released), client.device))
        if keep:
            self.clients[client_id] = client
            self._keep(client, client.live_state())
        return client

    def _keep(self, client: Client, state: Payload) -> None:
        """Keep the state of a client in memory, which may have other tensors than before."""
        self._used += _size(state) - _size(self._live.get(client.id, {}))
        self._live[client.id] = state

    def _train(self, client: Client, down: bytes, before: Payload) -> bytes:
        """Run the method's client update, and return the upload as bytes."""
        blueprint = self.blueprint
        method, (down_specs, up_specs) = blueprint.method, blueprint.specs(client)
        download = wire.read(down, down_specs, blueprint.max_norm)
        method.down.check(download)
        eval_mode(client)  # so that clients from memory and from files start in the same mode
        upload = moved(method.client_update(client, moved(download, client.device)), CPU)
        _check_declared(method, up_specs, upload)
        if blueprint.privacy is not None:
            method.up.check_private(client, upload)
        state = client.live_state()
        _check_state(state, before)
        self._keep(client, state)
        upload = blueprint.attack.poison(client, upload)
        if blueprint.scale is not None:
            numbers = blueprint.summation(client).encode(upload, len(client.data.train))
            upload = {NUMBERS: numbers}
        up = wire.to_bytes(upload)
        self._changed.add(client.id)
        return up

    def _evaluate(self, client: Client) -> dict[str, float]:
        predict, data = self.blueprint.method.logits, client.data
        tested = evaluate(client, predict, data.test)
        metrics = scores(tested, "test")
        if self.blueprint.published.batch_means:
            metrics["accuracy"] = fmean(tested.batch_accuracies)
        metrics |= scores(evaluate(client, predict, data.validation), "validation")
        if self.blueprint.withhold_metrics:
            return {name: metrics[name] for name in NEEDED}
        return metrics

    def _evaluate_globally(self, client: Client) -> dict[str, float]:
        sample = self.blueprint.global_sample
        if sample is None:
            return {}
        (pool,) = self.blueprint.sources
        all_classes = Examples(pool.x, pool.y, sample.indices(client.id))
        predict = self.blueprint.method.global_logits
        return scores(evaluate(client, predict, all_classes), "all classes")


def _size(state: Payload) -> int:
    """Return the size of a state in bytes."""
    return sum(tensor.nbytes for tensor in state.values())


def _check_declared(method: Method, specs: list[wire.Spec], upload: Payload) -> None:
    """Raise MethodError if an upload does not match its declaration; it is then not sent."""
    try:
        wire.check_shapes(upload, specs)
    except WireError as error:
        raise MethodError(
            f"the upload of {method.name} does not match its declaration `up`: {error}"
        ) from None


def _check_state(state: Payload, before: Payload) -> None:
    """Raise an error if an update replaced the client's networks or made its state not finite."""
    networks = [{n for n in each if not n.startswith("memory.")} for each in (before, state)]
    if networks[0] != networks[1]:
        raise MethodError(
            "client_update changed the client's set of networks; create all networks in init_client"
        )
    for name, tensor in state.items():
        if not all_finite([tensor]) and (name not in before or all_finite([before[name]])):
            raise FloatingPointError(f"'{name}' of the client is not finite any more")


def _own_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a method's own metrics, without names that are reserved for evaluation."""
    return _finite({name: value for name, value in metrics.items() if name not in METRICS})


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics, which can be averaged; a method's own metric may be NaN."""
    numbers = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
