"""The server: each round it selects participants, sends, receives, updates and records."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.average import network_state
from fedgh.core.defence import Defence, OutlierLog
from fedgh.core.groups import group_numbers
from fedgh.core.message import Shapes
from fedgh.core.method import Method
from fedgh.core.metrics import METRICS, NEEDED, own_metrics, spread
from fedgh.core.records import DroppedMeans, Problem, Round
from fedgh.core.rng import isolated, stream
from fedgh.core.subnet import Sizes, sizes_of
from fedgh.core.sums import NUMBERS, Summation
from fedgh.core.types import (
    CPU,
    Examples,
    GlobalRounds,
    Job,
    Payload,
    Recipient,
    Reply,
    SplitModel,
    Task,
    Upload,
    moved,
    part,
    prefixed,
)
from fedgh.core.uploads import Uploads
from fedgh.errors import MethodError, RunError, WireError, memory_errors

MAX_EMPTY_ROUNDS = 3
"""Rounds in a row in which all of a few participants fail; one such round does not end a run."""

CLASSES = "classes"
"""The name, in the server's state, of the class masks of all clients."""

GLOBAL = "global_accuracy"
"""The name of the metric on test samples of all clients."""


def ignore(_: object) -> None:
    """Do nothing (the default callback)."""


class Engine(Protocol):
    """The part that runs clients."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Yield a reply for each job as clients finish; that of a failed client has an error."""

    def save(self, round: int) -> None:
        """Write the state of every client that has changed since the last call."""

    def close(self) -> None:
        """Stop all processes and free all resources."""


@runtime_checkable
class MaskingEngine(Engine, Protocol):
    """An engine whose clients send masked uploads, of which the server learns only the sum."""

    def unmask(self, senders: Sequence[int], length: int) -> tuple[Tensor, int]:
        """Return the sum of the masks in these clients' uploads, and the bytes of messages.

        Raise WireError if it cannot be computed, for example because too few clients are left.
        """


@dataclass
class RoundTotals:
    """The totals of a round so far: uploads, bytes, metrics, failures."""

    uploads: int = 0
    bytes_up: int = 0
    wire_bytes: int = 0
    waited: float = 0.0
    losses: list[float] = field(default_factory=list)
    method_metrics: dict[str, list[float]] = field(default_factory=dict)
    failed: list[Problem] = field(default_factory=list)
    rejected: list[Problem] = field(default_factory=list)
    dropped: OutlierLog = field(default_factory=OutlierLog)
    discarded: str | None = None  # why the round does not change the server's state
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "summarise": 0.0, "evaluate": 0.0}
    )

    def means(self) -> dict[str, float]:
        """Return the mean of each metric of the method over the clients that reported it."""
        return {name: _mean(values) for name, values in self.method_metrics.items()}

    def first_problem(self) -> str:
        """Return the first failed or rejected client and why, to be appended to a message."""
        problems = self.failed + self.rejected
        return f"; client {problems[0].client}: {problems[0].reason}" if problems else ""


@dataclass(frozen=True)
class ServerResources:
    """The resources of the server beside its state: architectures, public data, a device."""

    networks: Sequence[
        Callable[[], SplitModel]
    ] = ()  # assigned in turn; empty if unknown to the server
    public: Examples | None = None
    device: torch.device = CPU

    def network(self, client_id: int) -> SplitModel:
        """Return a new network of a client's architecture."""
        if not self.networks:
            raise MethodError(
                "the server does not know clients' networks; set model.extractors and data.shape"
            )
        return self.networks[client_id % len(self.networks)]()

    def architecture(self, client_id: int) -> tuple[int, Sizes]:
        """Return the group of a client's network, and the sizes of its tensors."""
        return self._architectures[client_id % len(self._architectures)]

    @cached_property
    def _architectures(self) -> list[tuple[int, Sizes]]:
        models = [make() for make in self.networks]
        sizes = [sizes_of(network_state(model)) for model in models]
        return list(zip(group_numbers(models), sizes, strict=True)) or [(0, {})]


class Server:
    """A server: its state, its knowledge of the clients, and the engine that runs them."""

    def __init__(
        self,
        task: Task,
        method: Method,
        engine: Engine,
        state: Payload,
        *,
        participation: float = 1.0,
        eval_every: int = 1,
        evaluate_untrained: bool = True,
        global_rounds: GlobalRounds = "never",
        quorum: float = 0.0,
        defence: Defence | None = None,
        max_norm: float = inf,
        strikes: int = 0,
        summation: Summation | None = None,
        resources: ServerResources | None = None,
    ) -> None:
        self.task = task
        self.method = method
        self.engine = engine
        self.per_round = max(1, round(participation * task.num_clients))
        self.eval_every = eval_every
        self.evaluate_untrained = evaluate_untrained  # False: only clients that have trained
        self.global_rounds = global_rounds  # rounds with evaluation on all classes
        self.quorum = quorum  # share of the participants whose uploads are needed
        self.defence = defence or Defence()
        self.max_norm = max_norm  # largest norm of a row in an upload
        self.max_strikes = strikes  # rejected uploads until exclusion; 0 = no limit
        self.summation = summation  # of masked uploads; None: clients send uploads as they are
        self.server = part(state, "server.")
        self.bytes_total = int(state["bytes_total"])
        self._scores = {name: state[f"scores.{name}"].clone() for name in own_metrics()}
        self._stale = state["stale"].clone()  # clients whose model changed after evaluation
        self._trained = state["trained"].clone()  # last round in which each client trained
        # Global accuracy of each client's current model; NaN if that was not evaluated.
        self._global = state.get(GLOBAL, _unknown(task)).clone()
        self._empty_rounds = int(state["empty_rounds"])  # in a row, without an upload
        none = torch.zeros(task.num_clients, dtype=torch.int64)
        self.strikes = state.get("strikes", none).clone()  # rejected uploads of each client
        self._forgotten = state.get("forgotten", none.bool())  # clients removed by `fedgh forget`
        # Class masks of the clients' uploads, if uploads and downloads have rows per class.
        self._per_class = method.up.names_classes and method.down.names_classes
        classes = task.num_classes if self._per_class else 0
        no_classes = torch.zeros(task.num_clients, classes, dtype=torch.bool)
        self._classes = state.get(CLASSES, no_classes).clone()
        self._resources = resources or ServerResources()
        self._specs: dict[int, list[wire.Spec]] = {}  # of uploads, by architecture

    @staticmethod
    def initial_state(task: Task, server: Payload) -> Payload:
        """Return the state before the first round."""
        return {
            **prefixed("server.", server),
            **{f"scores.{name}": _unknown(task) for name in own_metrics()},
            "stale": torch.ones(task.num_clients, dtype=torch.bool),
            "trained": torch.zeros(task.num_clients, dtype=torch.int64),
            "bytes_total": torch.tensor(0),
            "empty_rounds": torch.tensor(0),
            "strikes": torch.zeros(task.num_clients, dtype=torch.int64),
        }

    def participants(self, number: int) -> list[int]:
        """Return the participants of a round, in the order in which uploads are processed."""
        rng = stream(self.task.seed, "participants", round=number)
        order = torch.randperm(self.task.num_clients, generator=rng)
        return sorted(order[~self._excluded()[order]][: self.per_round].tolist())

    @property
    def _global_too(self) -> bool:
        """True if global accuracy is measured in some round."""
        return self.global_rounds != "never"

    def _excluded(self) -> Tensor:
        """Return the mask of excluded clients: forgotten, or with too many rejected uploads."""
        return (self.strikes >= (self.max_strikes or inf)) | self._forgotten

    def round(
        self,
        number: int,
        on_reply: Callable[[Reply], None] = ignore,
        on_upload: Callable[[Upload], None] = ignore,
    ) -> Round:
        """Run one round and return its record.

        `on_reply` receives replies as clients finish, `on_upload` accepted uploads in client order.
        Raise RunError if the run cannot continue.
        """
        start = time.perf_counter()
        participants = self.participants(number)
        if not participants:
            raise RunError(
                f"round {number}: no client is left to select: all were forgotten, or excluded "
                f"after {self.max_strikes} rejected uploads each; see rounds.jsonl for the "
                "reasons, or raise run.strikes"
            )
        last = number == self.task.rounds
        evaluate = last or number % self.eval_every == 0
        globally = evaluate and {"every": True, "last": last, "never": False}[self.global_rounds]
        jobs, bytes_down = self._jobs(number, participants, evaluate, globally)

        totals = RoundTotals()
        uploads = self.defence.apply(
            self._receive(jobs, totals, on_reply, on_upload), totals.dropped
        )
        update = time.perf_counter()
        before, classes_before = self.server, self._classes.clone()
        self._update(number, uploads, totals)
        server_seconds = time.perf_counter() - update - totals.waited

        totals.discarded = totals.discarded or self._too_large()
        self._check_health(number, len(participants), totals, evaluate)
        if totals.discarded is not None:
            self.server, self._classes = before, classes_before
        self.bytes_total += totals.bytes_up + bytes_down
        scores, per_client = self._evaluation(evaluate, globally)
        return Round(
            round=number,
            participants=participants,
            scores=scores,
            per_client=per_client,
            train_loss=_mean(totals.losses) if totals.losses else None,
            method_metrics=totals.means(),
            bytes_up=totals.bytes_up,
            bytes_down=bytes_down,
            bytes_total=self.bytes_total,
            wire_bytes=totals.wire_bytes,
            rejected=totals.rejected,
            discarded=totals.discarded,
            dropped=[
                DroppedMeans(client=client, classes=classes)
                for client, classes in totals.dropped.classes.items()
            ],
            excluded=self._excluded().nonzero().flatten().tolist(),
            forgotten=self._forgotten.nonzero().flatten().tolist(),
            failed=totals.failed,
            seconds={
                **totals.seconds,
                "server": server_seconds,
                "total": time.perf_counter() - start,
            },
        )

    def state(self) -> Payload:
        """Return the server's state: all that later rounds depend on, except the clients."""
        return {
            **prefixed("server.", self.server),
            **prefixed("scores.", self._scores),
            **({GLOBAL: self._global} if self._global_too else {}),
            "stale": self._stale,
            "trained": self._trained,
            "bytes_total": torch.tensor(self.bytes_total),
            "empty_rounds": torch.tensor(self._empty_rounds),
            "strikes": self.strikes,
            **({"forgotten": self._forgotten} if bool(self._forgotten.any()) else {}),
            **({CLASSES: self._classes} if self._per_class else {}),
        }

    def _update(self, number: int, uploads: Iterator[Upload], totals: RoundTotals) -> None:
        """Let the method update the server's state from the uploads of a round."""
        resources = self._resources
        accepted = Uploads(
            self._noting_classes(uploads),
            task=self.task,
            round=number,
            device=resources.device,
            public_examples=resources.public,
            make_network=resources.network,
        )
        try:
            # Layers and dropout on the server draw from PyTorch's global generator.
            with (
                isolated(self.task.seed, "server-round", round=number),
                memory_errors(f"round {number}: the server's update"),
            ):
                self.server = moved(self.method.server_update(self.server, accepted), CPU)
        except FloatingPointError as error:
            raise RunError(f"round {number}: {error}; the last completed round is safe") from None
        except OverflowError:
            raise RunError(
                f"round {number}: the server computed a number beyond the largest one; check the "
                "settings of the method; the last completed round is safe"
            ) from None
        for _ in accepted:  # a method may stop early, but all participants must finish
            pass
        for name, value in accepted.metrics.items():
            if name not in METRICS and isfinite(value):
                totals.method_metrics[name] = [float(value)]

    def _noting_classes(self, uploads: Iterator[Upload]) -> Iterator[Upload]:
        """Yield the uploads, and record their classes, except those that the defence dropped."""
        for upload in uploads:
            if self._per_class and self.summation is None:
                self._classes[upload.client_id, upload.payload["classes"].long()] = True
            yield upload

    def recipient(self, client: int) -> Recipient:
        """Return the server's knowledge of a client that receives a download."""
        classes, (group, sizes) = self._classes[client], self._architecture(client)
        return Recipient(
            id=client,
            classes=classes if bool(classes.any()) else None,
            last_round=int(self._trained[client]),
            group=group,
            sizes=sizes,
        )

    def _architecture(self, client: int) -> tuple[int, Sizes]:
        """Return the group and sizes of a client's network; equal for all if no network is sent."""
        if not self.method.own_network_crosses:
            return 0, {}
        return self._resources.architecture(client)

    def _upload_specs(self, client: int) -> list[wire.Spec]:
        """Return the specs of this client's uploads, which depend on its architecture alone."""
        if self.summation is not None:
            return [self.summation.spec]
        kind = client % max(1, len(self._resources.networks))
        if kind not in self._specs:
            shapes = Shapes(self.task, lambda: self._resources.network(client))
            self._specs[kind] = self.method.upload_specs(shapes)
        return self._specs[kind]

    def _jobs(
        self, number: int, participants: list[int], evaluate: bool, globally: bool
    ) -> tuple[list[Job], int]:
        """Return jobs that train the participants and evaluate others with outdated scores.

        Return the bytes of all downloads, too.
        """
        jobs = []
        bytes_down = 0
        last: tuple[Payload, bytes] | None = None
        messages: dict[bytes, bytes] = {}  # equal messages are kept once
        for client in participants:
            down = self.method.broadcast(self.server, self.recipient(client))
            if last is None or not _same(down, last[0]):  # serialised once for all its recipients
                message = wire.to_bytes(down)
                last = (down, messages.setdefault(message, message))
            trained = int(self._trained[client])
            max_upload = max(map(wire.max_bytes, self._upload_specs(client)))
            jobs.append(Job(client, number, last[1], evaluate, trained, max_upload, globally))
            bytes_down += wire.nbytes(down)
        stale, unknown = self._out_of_date(evaluate, globally)
        selected = set(participants)
        for client in (stale | unknown).nonzero().flatten().tolist():
            if client not in selected:
                jobs.append(
                    Job(
                        client_id=client,
                        round=number,
                        down=None,
                        evaluate=bool(stale[client]),
                        trained=int(self._trained[client]),
                        evaluate_globally=bool(unknown[client]),
                    )
                )
        return jobs, bytes_down

    def _out_of_date(self, evaluate: bool, globally: bool) -> tuple[Tensor, Tensor]:
        """Return masks of clients to evaluate: on their own data, and on all classes."""
        trained, included = self._trained > 0, ~self._excluded()
        stale = self._stale & included & evaluate
        if not self.evaluate_untrained:
            stale &= trained
        return stale, self._global.isnan() & trained & included & globally

    def _receive(
        self,
        jobs: list[Job],
        totals: RoundTotals,
        on_reply: Callable[[Reply], None],
        on_upload: Callable[[Upload], None],
    ) -> Iterator[Upload]:
        """Yield accepted uploads in client order; record rejected uploads and failures."""
        started = time.perf_counter()  # this time counts as the engine's, not the server's
        replies = _in_order(jobs, self.engine.run(jobs), on_reply)
        totals.waited += time.perf_counter() - started
        senders: list[int] = []
        masked = torch.zeros(self.summation.length if self.summation else 0, dtype=torch.int64)
        while True:
            before = time.perf_counter()
            reply = next(replies, None)
            totals.waited += time.perf_counter() - before
            if reply is None:
                break
            self._record_reply(reply, totals)
            try:
                upload = self._read(reply)
            except WireError as error:
                totals.rejected.append(Problem(client=reply.client_id, reason=str(error)))
                self.strikes[reply.client_id] += 1
                continue
            self._record_metrics(reply, totals)
            if upload is not None:
                self._trained[reply.client_id] = reply.round
                totals.uploads += 1
                totals.bytes_up += wire.nbytes(upload.payload)
                if self.summation is not None:
                    senders.append(upload.client_id)
                    masked += upload.payload[NUMBERS]
                    continue
                on_upload(upload)
                yield upload
        if senders:
            yield from self._unmasked(senders, masked, totals)

    def _unmasked(
        self, senders: list[int], masked: Tensor, totals: RoundTotals
    ) -> Iterator[Upload]:
        """Yield one upload, the sum of masked ones; none, and the reason, if it cannot be used."""
        engine, summation = self.engine, self.summation
        assert isinstance(engine, MaskingEngine)
        assert summation is not None
        started = time.perf_counter()
        try:
            masks, wire_bytes = engine.unmask(senders, summation.length)
            totals.wire_bytes += wire_bytes
            upload = summation.decode(masked - masks, len(senders))
            self.method.check_upload(self.task, upload.payload, self.max_norm)
        except WireError as error:
            totals.discarded = f"no sum of the masked uploads: {error}"
            return
        finally:
            totals.waited += time.perf_counter() - started
        yield upload

    def _read(self, reply: Reply) -> Upload | None:
        """Return the upload in a reply, or None. Raise WireError if it is not as declared."""
        if reply.invalid is not None:
            raise WireError(reply.invalid)
        if reply.up is None:
            return None
        weighed = self.method.weighs_by_examples and self.summation is None
        if weighed and reply.num_examples < 1:
            raise WireError(f"the upload has a weight of {reply.num_examples} samples")
        payload = wire.read(reply.up, self._upload_specs(reply.client_id), self.max_norm)
        if self.summation is None:
            self.method.up.check(payload)
            self.method.check_upload(self.task, payload, self.max_norm)
        group, _ = self._architecture(reply.client_id)
        return Upload(reply.client_id, reply.num_examples, payload, group)

    def _record_reply(self, reply: Reply, totals: RoundTotals) -> None:
        """Record what holds even if the upload is rejected."""
        if reply.error is not None:
            totals.failed.append(Problem(client=reply.client_id, reason=reply.error))
        if reply.up is not None:
            self._stale[reply.client_id] = True
            self._global[reply.client_id] = torch.nan
        totals.wire_bytes += reply.wire_bytes

    def _record_metrics(self, reply: Reply, totals: RoundTotals) -> None:
        """Record the metrics that a client reported; not called if its upload was rejected."""
        if reply.metrics.keys() >= set(NEEDED):
            self._stale[reply.client_id] = False
            for name, scores in self._scores.items():
                scores[reply.client_id] = reply.metrics.get(name, torch.nan)
        if GLOBAL in reply.metrics and (reply.up is not None or self._trained[reply.client_id]):
            self._global[reply.client_id] = reply.metrics[GLOBAL]
        trained = reply.up is not None
        for name, value in (reply.metrics if trained else {}).items():
            if name == "train_loss":
                totals.losses.append(value)
            elif name not in METRICS:
                totals.method_metrics.setdefault(name, []).append(value)
        for phase, seconds in reply.seconds.items():
            totals.seconds[phase] = totals.seconds.get(phase, 0.0) + seconds

    def _evaluation(
        self, evaluated: bool, globally: bool
    ) -> tuple[dict[str, float | None], dict[str, list[float | None] | None]]:
        """Return, for each metric, the mean over evaluated clients and the value of each client."""
        metrics = [(name, scores, evaluated) for name, scores in self._scores.items()]
        if self._global_too:
            metrics.append((GLOBAL, self._global, globally))
        means: dict[str, float | None] = {}
        per_client: dict[str, list[float | None] | None] = {}
        for name, scores, current in metrics:
            scores[self._excluded()] = torch.nan  # reports of excluded clients do not count
            known = current and not bool(scores.isnan().all())
            means[name] = float(scores.nanmean()) if known else None
            per_client[name] = _numbers(scores) if current else None
        if evaluated:
            means |= {f"accuracy_{key}": n for key, n in spread(self._scores["accuracy"]).items()}
        return means, per_client

    def _too_large(self) -> str | None:
        """Return why clients would reject the server's next download; None if they accept it.

        Uploads that are valid one by one may add up to a row that is too large. A malicious client
        must not end the run in this way, so such a round does not change the server's state.
        """
        for name, tensor in self.method.sendable(self.server).items():
            if tensor.is_floating_point():
                norm = wire.largest_row_norm(tensor)
                if self.max_norm < norm < inf:
                    return f"the server's '{name}' would have a row of norm {norm:.4g}"
        return None

    def _check_health(
        self, number: int, participants: int, totals: RoundTotals, evaluated: bool
    ) -> None:
        """Raise RunError if the run cannot continue, before the round is committed."""
        useful = totals.uploads > 0 and totals.discarded is None
        self._empty_rounds = 0 if useful else self._empty_rounds + 1
        often = self._empty_rounds >= MAX_EMPTY_ROUNDS
        again = f", for the {MAX_EMPTY_ROUNDS}rd time in a row" if often else ""
        all_clients = participants >= int((~self._excluded()).sum())
        if not totals.uploads and (all_clients or often):
            raise RunError(
                f"round {number}: all {participants} participants failed{again}"
                + totals.first_problem()
            )
        if totals.discarded is not None and often:
            advice = "lower the server's learning rate, or raise run.max_norm"
            if self.summation is not None:
                advice = f"check that enough clients answer, or {advice}"
            raise RunError(f"round {number}: {totals.discarded}{again}; {advice}")
        if totals.uploads < self.quorum * participants:
            raise RunError(
                f"round {number}: {totals.uploads} of {participants} participants sent an upload, "
                f"fewer than run.quorum = {self.quorum:g}; the last completed round is safe, so "
                "resume the run when more clients are there"
            )
        if evaluated and bool(self._scores["accuracy"].isnan().all()):
            raise RunError(f"round {number}: no client could be evaluated{totals.first_problem()}")
        for name, tensor in self.server.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise RunError(
                    f"round {number}: the server's '{name}' is no longer finite; "
                    "lower its learning rate (for fedgh: method.server_lr)"
                )


def _same(one: Payload, other: Payload) -> bool:
    """Return true if two payloads have the same tensors, not only equal ones."""
    return one.keys() == other.keys() and all(other[name] is one[name] for name in one)


def _in_order(
    jobs: Sequence[Job], replies: Iterator[Reply], on_reply: Callable[[Reply], None]
) -> Iterator[Reply]:
    """Yield replies in the order of the jobs, so that results do not depend on clients' speed."""
    early: dict[int, Reply] = {}
    for job in jobs:
        while job.client_id not in early:
            reply = next(replies)
            on_reply(reply)
            early[reply.client_id] = reply
        yield early.pop(job.client_id)


def _unknown(task: Task) -> Tensor:
    """Return the scores of clients before any evaluation: NaN for each."""
    return torch.full((task.num_clients,), torch.nan, dtype=torch.float64)


def _numbers(values: Tensor) -> list[float | None]:
    out: list[float | None] = [None] * len(values)
    known = (~values.isnan()).nonzero().flatten()  # often only a few of very many
    for client, value in zip(known.tolist(), values[known].tolist(), strict=True):
        out[client] = value
    return out


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
