"""The contract of a method, as one call for its author's tests.

from fedgh.testing import check_method

def test_contract() -> None:
    check_method(MyMethod(momentum=0.5))

No other module of fedgh imports this one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgh import config
from fedgh.core import wire
from fedgh.core.local import Predict, eval_mode, evaluate
from fedgh.core.message import Shapes
from fedgh.core.method import Method
from fedgh.core.rng import isolated
from fedgh.core.server import Surroundings
from fedgh.core.types import Client, Payload, Recipient, Upload
from fedgh.core.uploads import Uploads
from fedgh.engines.host import Blueprint
from fedgh.errors import WireError
from fedgh.files import read_bytes
from fedgh.runs.sealed import MAX_STATE, unpack
from fedgh.training import experiment, loop
from fedgh.training.experiment import Experiment
from fedgh.training.run import Run

__all__ = ["check_method", "check_runs", "play"]

TINY = (
    *("federation.clients=4", "federation.rounds=4", "federation.participation=0.5"),
    *("data.classes_per_client=4", "data.samples=40", "model.extractors=mlp,perceptron"),
    "model.rep_dim=8",
    *("local.epochs=1", "local.batch_size=16", "local.lr=0.05"),
    *("run.engine=serial", "run.global_accuracy=never"),
)
"""Changes of the demo: four clients with two different networks learn digits in a moment."""

ROUNDS = 3
"""Rounds that are played by hand: a client is new in the second of them, and sits out the third."""

RESTARTED = (
    "when clients run in another order, or after a restart: keep state in tensors (client.memory, "
    "client.modules, what server_update returns), and draw random numbers from streams"
)

MEASURED_TIMES = ("seconds", "wire_bytes")
"""Keys of a record in which two equal runs differ."""


def check_method(
    what: Method | Experiment, settings: Sequence[str] = (), runs: Path | None = None
) -> None:
    """Assert what each method owes to the rest of fedgh; AssertionError says what is not so.

    A method is played on a tiny federation, the embedded digits with two kinds of small networks.
    `settings` change it, as `--set` does: `["model.extractors=mlp"]` for a method that needs one
    architecture. An experiment (`fedgh.prepare`) is played as it is.

    Asserted are: messages are as declared, and client and server declare the same; nothing that was
    received is changed; a round without uploads can be followed by another; logits are one row for
    each sample and one number for each class; the result is the same when clients run in another
    order and when all state was written and read again.

    With `runs`, an empty folder, whole runs give the same bits in one process, in two workers and
    after an interruption. That takes some seconds, and the method must be in a module that can be
    imported.
    """
    if settings and isinstance(what, Experiment):
        raise ValueError("settings change a tiny federation; an experiment is played as it is")
    prepared = _tiny(what, settings) if isinstance(what, Method) else what
    play(prepared, ROUNDS)
    if runs is not None:
        check_runs(prepared, runs)


def play(prepared: Experiment, rounds: int = ROUNDS) -> Payload:
    """Play rounds by hand, twice, and assert the contract; return what the server holds at the end.

    The second time clients run in the opposite order, and all that outlives a round is written and
    read again after it.
    """
    server, clients = _Play(prepared).play(rounds)
    again, others = _Play(prepared, restarted=True).play(rounds)
    _must(_same(server, again), f"the server ends in another state {RESTARTED}")
    for one, other in zip(clients, others, strict=True):
        same = _same(one.state(), other.state())
        _must(same, f"client {one.id} ends in another state {RESTARTED}")
    return server


def check_runs(prepared: Experiment, folder: Path) -> Run:
    """Assert that one process, two workers and a run that was stopped give the same bits.

    Return the first of them.
    """
    serial = loop.run(_with(prepared, engine="serial"), folder / "serial")
    expected = _left_by(serial)
    workers = loop.run(_with(prepared, engine="workers", workers=2), folder / "workers")
    _must(_left_by(workers) == expected, "two workers give other numbers than one process")
    half = max(1, prepared.task.rounds // 2)
    stopped = folder / "stopped"
    loop.run(_with(prepared, engine="serial"), stopped, [lambda record: record.round == half])
    resumed = loop.resume(stopped)
    _must(_left_by(resumed) == expected, "a resumed run gives other numbers than one in one piece")
    return serial


def _tiny(method: Method, settings: Sequence[str]) -> Experiment:
    """A tiny federation; the method need not be in a module that can be imported."""
    changed = config.load("demo", [*TINY, *settings])
    return experiment.prepare(changed.model_copy(update={"method": method}))


def _with(prepared: Experiment, **run: Any) -> Experiment:
    section = prepared.config.run.model_copy(update=run)
    return replace(prepared, config=prepared.config.model_copy(update={"run": section}))


def _left_by(run: Run) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return the records of a run without its times, and every state that it has left."""
    records = [record.model_dump(exclude=set(MEASURED_TIMES)) for record in run.records()]
    states = {
        path.name: wire.to_bytes(unpack(read_bytes(path, MAX_STATE))[1])
        for path in Path(run.checkpoint).iterdir()
    }
    return records, states


@dataclass
class _Play:
    """Rounds of one federation, as the server and the engines play them."""

    prepared: Experiment
    restarted: bool = False  # after each round; clients run in the opposite order, too

    def __post_init__(self) -> None:
        self.blueprint: Blueprint = self.prepared.blueprint()
        self.around = self.prepared.surroundings()
        self.method, self.task = self.blueprint.method, self.blueprint.task
        crosses = self.method.own_network_crosses
        self.known = self.around if crosses else Surroundings()  # of the clients' networks
        self.last = [0] * self.task.num_clients
        both = self.method.up.names_classes and self.method.down.names_classes
        self.shown: dict[int, Tensor] | None = {} if both else None

    def play(self, rounds: int) -> tuple[Payload, list[Client]]:
        """Return the server and the clients after so many rounds."""
        clients = [self.blueprint.make(k) for k in range(self.task.num_clients)]
        server = self.prepared.initial_server()
        server = self._learned(server, [], 1)  # a round in which nothing arrives
        for number in range(2, rounds + 2):
            before = _copied(server)
            sent = [self._taught(client, server, number) for client in self._asked(clients, number)]
            _must(_same(server, before), "a broadcast changed what the server holds")
            server = self._learned(server, sorted(sent, key=lambda one: one.client_id), number)
            for client in clients:
                self._judged(client)
            if self.restarted:
                server = wire.from_bytes(wire.to_bytes(server))
                clients = [self._read_again(client) for client in clients]
        return server, clients

    def _asked(self, clients: list[Client], number: int) -> list[Client]:
        some = clients[(number + 1) % 2 :]  # so that one is new later, and sits out a round
        return some[::-1] if self.restarted else some

    def _taught(self, client: Client, server: Payload, number: int) -> Upload:
        method, client.round = self.method, number
        to = self._recipient(client.id)
        down = method.broadcast(server, to)
        received, shapes = _copied(down), Shapes.of(client)
        _as_declared(down, method.download_specs(shapes), "what the server sends")
        _possible(lambda: method.down.check(down), "what the server sends")
        eval_mode(client)
        with isolated(self.task.seed, "client", client.id, number):
            up = method.client_update(client, down)
        _must(_same(down, received), "the client changed what it received")
        specs = method.upload_specs(shapes)
        known = method.upload_specs(Shapes(self.task, partial(self.around.network, client.id)))
        _must(specs == known, "the server expects other uploads than the client declares")
        _as_declared(up, specs, "the upload")
        _possible(lambda: method.up.check(up), "the upload")
        largest = self.blueprint.max_norm
        _possible(lambda: method.check_upload(self.task, up, largest), "the upload")
        self.last[client.id] = number
        if self.shown is not None:
            classes = self.shown.setdefault(client.id, torch.zeros(self.task.num_classes).bool())
            classes[up["classes"].long()] = True
        samples = len(client.data.train) if method.weighs_by_examples else 0
        return Upload(client.id, samples, up, to.group)

    def _recipient(self, client: int) -> Recipient:
        classes = self.shown.get(client) if self.shown is not None else None
        return Recipient(client, classes, self.last[client], *self.known.architecture(client))

    def _learned(self, server: Payload, sent: list[Upload], number: int) -> Payload:
        around, before = self.around, _copied(server)
        payloads = [_copied(upload.payload) for upload in sent]
        told = Uploads(sent, self.task, number, around.device, around.public, around.network)
        with isolated(self.task.seed, "server-round", round=number):
            after = self.method.server_update(server, told)
        _must(_same(server, before), "server_update changed what the server held before")
        unchanged = all(_same(one.payload, p) for one, p in zip(sent, payloads, strict=True))
        _must(unchanged, "server_update changed an upload")
        for name, tensor in {**after, **self.method.sendable(after)}.items():
            _must(_plain(tensor), f"the server's '{name}' is not a CPU tensor without gradients")
            finite = not tensor.is_floating_point() or bool(tensor.isfinite().all())
            _must(finite, f"the server's '{name}' is not finite")
        return after

    def _judged(self, client: Client) -> None:
        classes, test = self.task.num_classes, client.data.test
        for of in (self.method.logits, self.method.global_logits):

            def logits(client: Client, x: Tensor, of: Predict = of) -> Tensor:
                out = of(client, x)
                shape, expected = tuple(out.shape), (len(x), classes)
                _must(shape == expected, f"logits have shape {shape}, not {expected}")
                return out

            evaluate(client, logits, test)

    def _read_again(self, client: Client) -> Client:
        fresh = self.blueprint.make(client.id)
        fresh.load(wire.from_bytes(wire.to_bytes(client.state())))
        return fresh


def _as_declared(payload: Payload, specs: Sequence[wire.Spec], what: str) -> None:
    for name, tensor in payload.items():
        _must(_plain(tensor), f"'{name}' in {what} is not a CPU tensor without gradients")
    try:
        read = wire.read(wire.to_bytes(payload), specs)
    except WireError as error:
        raise AssertionError(f"{what} is not as declared: {error}") from None
    _must(_same(read, payload), f"{what} is not what arrives")


def _possible(check: Callable[[], None], what: str) -> None:
    try:
        check()
    except WireError as error:
        raise AssertionError(f"{what} is refused: {error}") from None


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not tensor.requires_grad


def _copied(payload: Payload) -> Payload:
    return {name: tensor.clone() for name, tensor in payload.items()}


def _same(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
