"""The round, top to bottom: sample, broadcast, train, receive, update, evaluate, record."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import Protocol

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
from fedgh.errors import MethodError, RunError, WireError

MAX_EMPTY_ROUNDS = 3
"""Rounds in a row whose few participants all fail; a client's bad day should not end a run."""


CLASSES = "classes"
"""The name, in the server's state, of the classes that each client has shown to have."""

GLOBAL = "global_accuracy"
"""How they are judged on all classes."""


def ignore(_: object) -> None:
    """Somebody who does not want to know."""


class Engine(Protocol):
    """Where clients live and work."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """One reply for each job, as they come. A client that failed is a reply with an error."""

    def save(self, round: int) -> None:
        """Write the state of every client that has changed since the last time."""

    def close(self) -> None:
        """Leave nothing behind."""


@dataclass
class Received:
    """What a round has brought in so far."""

    uploads: int = 0
    bytes_up: int = 0
    wire_bytes: int = 0
    waited: float = 0.0
    losses: list[float] = field(default_factory=list)
    method_metrics: dict[str, list[float]] = field(default_factory=dict)
    failed: list[Problem] = field(default_factory=list)
    rejected: list[Problem] = field(default_factory=list)
    dropped: OutlierLog = field(default_factory=OutlierLog)
    discarded: str | None = None  # why the server is as it was before the round
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "summarise": 0.0, "evaluate": 0.0}
    )

    def means(self) -> dict[str, float]:
        """Return the mean of each of a method's own numbers over those that reported it."""
        return {name: _mean(values) for name, values in self.method_metrics.items()}

    def first_problem(self) -> str:
        """Who had trouble, and which, for the end of a sentence."""
        problems = self.failed + self.rejected
        return f"; client {problems[0].client}: {problems[0].reason}" if problems else ""


@dataclass(frozen=True)
class Surroundings:
    """The server's means beside its state: the clients' architectures, public data, a device."""

    networks: Sequence[Callable[[], SplitModel]] = ()  # dealt in turn; none where they are secret
    public: Examples | None = None
    device: torch.device = CPU

    def network(self, client_id: int) -> SplitModel:
        """Return a fresh network of a client's architecture."""
        if not self.networks:
            raise MethodError(
                "the clients' networks are not known here (model.extractors, data.shape)"
            )
        return self.networks[client_id % len(self.networks)]()

    def architecture(self, client_id: int) -> tuple[int, Sizes]:
        """Return the group of a client's network, and the sizes of its tensors."""
        return self._architectures[client_id % len(self._architectures)]

    @cached_property
    def _architectures(self) -> list[tuple[int, Sizes]]:
        made = [make() for make in self.networks]
        sizes = [sizes_of(network_state(model)) for model in made]
        return list(zip(group_numbers(made), sizes, strict=True)) or [(0, {})]


class Server:
    """A server, the engine that reaches its clients, and what is known of them."""

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
        surroundings: Surroundings | None = None,
    ) -> None:
        self.task = task
        self.method = method
        self.engine = engine
        self.per_round = max(1, round(participation * task.num_clients))
        self.eval_every = eval_every
        self.evaluate_untrained = evaluate_untrained  # else only those that have taken part
        self.global_rounds = global_rounds  # in which clients are judged on all classes
        self.quorum = quorum  # the share of a round's participants that must answer
        self.defence = defence or Defence()
        self.max_norm = max_norm  # of a row in an upload
        self.max_strikes = strikes  # rejected uploads after which a client is set aside; 0 = never
        self.server = part(state, "server.")
        self.bytes_total = int(state["bytes_total"])
        self._scores = {name: state[f"scores.{name}"].clone() for name in own_metrics()}
        self._stale = state["stale"].clone()  # whose model has changed since they were taken
        self._trained = state["trained"].clone()  # the last round in which each client trained
        # On all classes, by the model that a client has now; unknown where that was not judged.
        self._global = state.get(GLOBAL, _unknown(task)).clone()
        self._empty_rounds = int(state["empty_rounds"])  # in a row, without a single upload
        none = torch.zeros(task.num_clients, dtype=torch.int64)
        self.strikes = state.get("strikes", none).clone()  # each client's rejected uploads
        self._forgotten = state.get("forgotten", none.bool())  # clients taken out of the run
        # Classes that each client has shown to have, where the server answers class by class.
        self._per_class = method.up.names_classes and method.down.names_classes
        classes = task.num_classes if self._per_class else 0
        unshown = torch.zeros(task.num_clients, classes, dtype=torch.bool)
        self._classes = state.get(CLASSES, unshown).clone()
        self._surroundings = surroundings or Surroundings()
        self._specs: dict[int, list[wire.Spec]] = {}  # of uploads, for each architecture

    @staticmethod
    def initial_state(task: Task, server: Payload) -> Payload:
        """The state before the first round."""
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
        """The clients of a round, in the order in which they are absorbed."""
        rng = stream(self.task.seed, "participants", round=number)
        order = torch.randperm(self.task.num_clients, generator=rng)
        return sorted(order[~self._excluded()[order]][: self.per_round].tolist())

    @property
    def _global_too(self) -> bool:
        """Whether there is a round in which clients are judged on all classes."""
        return self.global_rounds != "never"

    def _excluded(self) -> Tensor:
        """Mask of clients that are not asked any more: forgotten, or rejected too often."""
        return (self.strikes >= (self.max_strikes or inf)) | self._forgotten

    def round(
        self,
        number: int,
        on_reply: Callable[[Reply], None] = ignore,
        on_upload: Callable[[Upload], None] = ignore,
    ) -> Round:
        """Play one round and return its record.

        Replies are shown as they come, accepted uploads in the order in which they are absorbed.
        """
        start = time.perf_counter()
        participants = self.participants(number)
        if not participants:
            raise RunError(
                f"round {number}: no client is left to ask: all were forgotten, or set aside after "
                f"{self.max_strikes} rejected uploads each; rounds.jsonl says why, run.strikes "
                "allows more"
            )
        last = number == self.task.rounds
        evaluate = last or number % self.eval_every == 0
        globally = evaluate and {"every": True, "last": last, "never": False}[self.global_rounds]
        jobs, bytes_down = self._jobs(number, participants, evaluate, globally)

        received = Received()
        uploads = self.defence.apply(
            self._receive(jobs, received, on_reply, on_upload), received.dropped
        )
        update = time.perf_counter()
        before, shown = self.server, self._classes.clone()
        self._update(number, uploads, received)
        server_seconds = time.perf_counter() - update - received.waited

        received.discarded = self._too_large()
        self._check_health(number, len(participants), received, evaluate)
        if received.discarded is not None:
            self.server, self._classes = before, shown
        self.bytes_total += received.bytes_up + bytes_down
        scores, per_client = self._evaluation(evaluate, globally)
        return Round(
            round=number,
            participants=participants,
            scores=scores,
            per_client=per_client,
            train_loss=_mean(received.losses) if received.losses else None,
            method_metrics=received.means(),
            bytes_up=received.bytes_up,
            bytes_down=bytes_down,
            bytes_total=self.bytes_total,
            wire_bytes=received.wire_bytes,
            rejected=received.rejected,
            discarded=received.discarded,
            dropped=[
                DroppedMeans(client=client, classes=classes)
                for client, classes in received.dropped.classes.items()
            ],
            excluded=self._excluded().nonzero().flatten().tolist(),
            forgotten=self._forgotten.nonzero().flatten().tolist(),
            failed=received.failed,
            seconds={
                **received.seconds,
                "server": server_seconds,
                "total": time.perf_counter() - start,
            },
        )

    def state(self) -> Payload:
        """All that a later round depends on, beside the clients themselves."""
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

    def _update(self, number: int, uploads: Iterator[Upload], received: Received) -> None:
        """Let the method learn from the uploads of a round."""
        around = self._surroundings
        told = Uploads(
            self._noting_classes(uploads),
            task=self.task,
            round=number,
            device=around.device,
            public_examples=around.public,
            make_network=around.network,
        )
        try:
            # Layers and dropout on the server draw from the global generator.
            with isolated(self.task.seed, "server-round", round=number):
                self.server = moved(self.method.server_update(self.server, told), CPU)
        except FloatingPointError as error:
            raise RunError(f"round {number}: {error}; the last completed round is safe") from None
        for _ in told:  # a method need not listen to all participants, but all of them finish
            pass
        for name, value in told.metrics.items():
            if name not in METRICS and isfinite(value):
                received.method_metrics[name] = [float(value)]

    def _noting_classes(self, uploads: Iterator[Upload]) -> Iterator[Upload]:
        """Pass uploads on, after the defence: classes that it left out are not remembered."""
        for upload in uploads:
            if self._per_class:
                self._classes[upload.client_id, upload.payload["classes"].long()] = True
            yield upload

    def recipient(self, client: int) -> Recipient:
        """Return what is known of a client that is about to be sent something."""
        shown, (group, sizes) = self._classes[client], self._architecture(client)
        return Recipient(
            id=client,
            classes=shown if bool(shown.any()) else None,
            last_round=int(self._trained[client]),
            group=group,
            sizes=sizes,
        )

    def _architecture(self, client: int) -> tuple[int, Sizes]:
        """The group and sizes of a client's network; the same for all where no network crosses."""
        if not self.method.own_network_crosses:
            return 0, {}
        return self._surroundings.architecture(client)

    def _upload_specs(self, client: int) -> list[wire.Spec]:
        """Return the specs of this client's uploads: they depend on its architecture alone."""
        kind = client % max(1, len(self._surroundings.networks))
        if kind not in self._specs:
            shapes = Shapes(self.task, lambda: self._surroundings.network(client))
            self._specs[kind] = self.method.upload_specs(shapes)
        return self._specs[kind]

    def _jobs(
        self, number: int, participants: list[int], evaluate: bool, globally: bool
    ) -> tuple[list[Job], int]:
        """Train the participants; then judge all others whose scores are out of date."""
        jobs = []
        bytes_down = 0
        last: tuple[Payload, bytes] | None = None
        for client in participants:
            down = self.method.broadcast(self.server, self.recipient(client))
            if last is None or down is not last[0]:  # one message serves all who get the same
                last = (down, wire.to_bytes(down))
            trained = int(self._trained[client])
            max_upload = max(map(wire.max_bytes, self._upload_specs(client)))
            jobs.append(Job(client, number, last[1], evaluate, trained, max_upload, globally))
            bytes_down += wire.nbytes(down)
        stale, unknown = self._out_of_date(evaluate, globally)
        asked = set(participants)
        for client in (stale | unknown).nonzero().flatten().tolist():
            if client not in asked:
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
        """Whose scores on their own data are to be taken again, and whose on all classes."""
        trained, heard = self._trained > 0, ~self._excluded()
        stale = self._stale & heard & evaluate
        if not self.evaluate_untrained:
            stale &= trained
        return stale, self._global.isnan() & trained & heard & globally

    def _receive(
        self,
        jobs: list[Job],
        received: Received,
        on_reply: Callable[[Reply], None],
        on_upload: Callable[[Upload], None],
    ) -> Iterator[Upload]:
        """Accepted uploads in client order, as they come; everything else is noted down."""
        handed_out = time.perf_counter()  # the engine's work, not the server's
        replies = _in_order(jobs, self.engine.run(jobs), on_reply)
        received.waited += time.perf_counter() - handed_out
        while True:
            asked = time.perf_counter()
            reply = next(replies, None)
            received.waited += time.perf_counter() - asked
            if reply is None:
                return
            self._note(reply, received)
            try:
                upload = self._read(reply)
            except WireError as error:
                received.rejected.append(Problem(client=reply.client_id, reason=str(error)))
                self.strikes[reply.client_id] += 1
                continue
            self._note_numbers(reply, received)
            if upload is not None:
                self._trained[reply.client_id] = reply.round
                received.uploads += 1
                received.bytes_up += wire.nbytes(upload.payload)
                on_upload(upload)
                yield upload

    def _read(self, reply: Reply) -> Upload | None:
        """The upload in a reply, if there is one; WireError when it is not what was declared."""
        if reply.invalid is not None:
            raise WireError(reply.invalid)
        if reply.up is None:
            return None
        if self.method.weighs_by_examples and reply.num_examples < 1:
            raise WireError(f"a weight of {reply.num_examples} samples")
        payload = wire.read(reply.up, self._upload_specs(reply.client_id), self.max_norm)
        self.method.up.check(payload)
        self.method.check_upload(self.task, payload, self.max_norm)
        group, _ = self._architecture(reply.client_id)
        return Upload(reply.client_id, reply.num_examples, payload, group)

    def _note(self, reply: Reply, received: Received) -> None:
        """Record what holds even if the upload is rejected."""
        if reply.error is not None:
            received.failed.append(Problem(client=reply.client_id, reason=reply.error))
        if reply.up is not None:
            self._stale[reply.client_id] = True
            self._global[reply.client_id] = torch.nan
        received.wire_bytes += reply.wire_bytes

    def _note_numbers(self, reply: Reply, received: Received) -> None:
        """What a client says of itself, if nothing that it sent was rejected."""
        if reply.metrics.keys() >= set(NEEDED):
            self._stale[reply.client_id] = False
            for name, scores in self._scores.items():
                scores[reply.client_id] = reply.metrics.get(name, torch.nan)
        if GLOBAL in reply.metrics and (reply.up is not None or self._trained[reply.client_id]):
            self._global[reply.client_id] = reply.metrics[GLOBAL]
        measured = reply.metrics if reply.up is not None else {}  # else nothing was trained
        for name, value in measured.items():
            if name == "train_loss":
                received.losses.append(value)
            elif name not in METRICS:
                received.method_metrics.setdefault(name, []).append(value)
        for phase, seconds in reply.seconds.items():
            received.seconds[phase] = received.seconds.get(phase, 0.0) + seconds

    def _evaluation(
        self, evaluated: bool, globally: bool
    ) -> tuple[dict[str, float | None], dict[str, list[float | None] | None]]:
        """For each metric the mean over all judged clients, and every client's own."""
        metrics = [(name, scores, evaluated) for name, scores in self._scores.items()]
        if self._global_too:
            metrics.append((GLOBAL, self._global, globally))
        means: dict[str, float | None] = {}
        per_client: dict[str, list[float | None] | None] = {}
        for name, scores, judged in metrics:
            scores[self._excluded()] = torch.nan  # what is not believed any more
            known = judged and not bool(scores.isnan().all())
            means[name] = float(scores.nanmean()) if known else None
            per_client[name] = _numbers(scores) if judged else None
        if evaluated:
            means |= {f"accuracy_{key}": n for key, n in spread(self._scores["accuracy"]).items()}
        return means, per_client

    def _too_large(self) -> str | None:
        """Why no client would accept what the server now has to send; None if one would.

        Uploads that are fine one by one may add up to that. A liar should not end the run: the
        round then changes nothing.
        """
        for name, tensor in self.method.sendable(self.server).items():
            if tensor.is_floating_point():
                norm = wire.largest_row_norm(tensor)
                if self.max_norm < norm < inf:
                    return f"the server's '{name}' would have a row of norm {norm:.4g}"
        return None

    def _check_health(
        self, number: int, participants: int, received: Received, evaluated: bool
    ) -> None:
        """End a run that cannot get anywhere, before its round is committed."""
        useful = received.uploads > 0 and received.discarded is None
        self._empty_rounds = 0 if useful else self._empty_rounds + 1
        often = self._empty_rounds >= MAX_EMPTY_ROUNDS
        again = f", for the {MAX_EMPTY_ROUNDS}rd time in a row" if often else ""
        everybody = participants >= int((~self._excluded()).sum())
        if not received.uploads and (everybody or often):
            raise RunError(
                f"round {number}: all {participants} participants failed{again}"
                + received.first_problem()
            )
        if received.discarded is not None and often:
            raise RunError(
                f"round {number}: {received.discarded}{again}; lower the server's learning rate, "
                "or raise run.max_norm"
            )
        if received.uploads < self.quorum * participants:
            raise RunError(
                f"round {number}: {received.uploads} of {participants} participants answered, "
                f"run.quorum = {self.quorum:g} asks for more; the last completed round is safe"
            )
        if evaluated and bool(self._scores["accuracy"].isnan().all()):
            raise RunError(f"round {number}: no client could be judged{received.first_problem()}")
        for name, tensor in self.server.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise RunError(
                    f"round {number}: the server's '{name}' is not finite any more; "
                    "lower its learning rate (for fedgh: method.server_lr)"
                )


def _in_order(
    jobs: Sequence[Job], replies: Iterator[Reply], on_reply: Callable[[Reply], None]
) -> Iterator[Reply]:
    """Replies in the order of the jobs: how fast a client is must not change what is learned."""
    early: dict[int, Reply] = {}
    for job in jobs:
        while job.client_id not in early:
            reply = next(replies)
            on_reply(reply)
            early[reply.client_id] = reply
        yield early.pop(job.client_id)


def _unknown(task: Task) -> Tensor:
    """A score of each client that was not taken yet."""
    return torch.full((task.num_clients,), torch.nan, dtype=torch.float64)


def _numbers(values: Tensor) -> list[float | None]:
    out: list[float | None] = [None] * len(values)
    known = (~values.isnan()).nonzero().flatten()  # perhaps a few of very many
    for client, value in zip(known.tolist(), values[known].tolist(), strict=True):
        out[client] = value
    return out


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
