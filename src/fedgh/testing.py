"""Check the contract of a method with one call, in the tests of its author.

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
from fedgh.core.server import ServerResources
from fedgh.core.types import Client, Payload, Recipient, Upload
from fedgh.core.uploads import Uploads
from fedgh.engines.host import Blueprint
from fedgh.errors import WireError
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
"""Overrides of the demo: four clients with two different networks, which train in a second."""

ROUNDS = 3
"""Rounds that are simulated. One client joins in the second, and is not selected in the third."""

SAME_STATE_HINT = (
    "when clients run in another order or after a restart: keep state in tensors (client.memory, "
    "client.modules, what server_update returns), and draw random numbers from streams"
)

MEASURED_TIMES = ("seconds", "wire_bytes")
"""Keys of a record that differ between two equal runs."""


def check_method(
    subject: Method | Experiment, settings: Sequence[str] = (), runs: Path | None = None
) -> None:
    """Check that a method fulfils its contract. Raise AssertionError if it does not.

    A method is run on a tiny federation: the embedded digits, with two kinds of small networks.
    `settings` change it like `--set`, for example `["model.extractors=mlp"]` for a method that
    needs one architecture. An experiment (`fedgh.prepare`) is run as it is.

    Checked are: messages are as declared, and client and server declare the same; received tensors
    are not changed; a round without uploads can be followed by another; logits have one row per
    sample and one number per class; the result is the same if clients run in another order, and if
    all states are written and read again after each round.

    With `runs`, an empty folder, whole runs must give the same bits in one process, in two workers
    and after an interruption. This takes some seconds, and the method must be in a module that can
    be imported.
    """
    if settings and isinstance(subject, Experiment):
        raise ValueError("settings change a tiny federation; an experiment is run as it is")
    prepared = _tiny(subject, settings) if isinstance(subject, Method) else subject
    play(prepared, ROUNDS)
    if runs is not None:
        check_runs(prepared, runs)


def play(prepared: Experiment, rounds: int = ROUNDS) -> Payload:
    """Simulate rounds twice and check the contract; return the server's final state.

    The second time clients run in the opposite order, and all states are written and read again
    after each round.
    """
    server, clients = _Simulation(prepared).run(rounds)
    again, others = _Simulation(prepared, restarted=True).run(rounds)
    _require(_same(server, again), f"the server ends in another state {SAME_STATE_HINT}")
    for one, other in zip(clients, others, strict=True):
        same = _same(one.state(), other.state())
        _require(same, f"client {one.id} ends in another state {SAME_STATE_HINT}")
    return server


def check_runs(prepared: Experiment, folder: Path) -> Run:
    """Check that one process, two workers and a resumed run give the same bits.

    Return the run in one process. Raise AssertionError if they differ.
    """
    serial = loop.run(_with(prepared, engine="serial"), folder / "serial")
    expected = _results(serial)
    workers = loop.run(_with(prepared, engine="workers", workers=2), folder / "workers")
    _require(_results(workers) == expected, "two workers give other results than one process")
    half = max(1, prepared.task.rounds // 2)
    stopped = folder / "stopped"
    loop.run(_with(prepared, engine="serial"), stopped, [lambda record: record.round == half])
    resumed = loop.resume(stopped)
    _require(
        _results(resumed) == expected, "a resumed run gives other results than an uninterrupted one"
    )
    return serial


def _tiny(method: Method, settings: Sequence[str]) -> Experiment:
    """Return a tiny federation; the method need not be in a module that can be imported."""
    changed = config.load("demo", [*TINY, *settings])
    return experiment.prepare(changed.model_copy(update={"method": method}))


def _with(prepared: Experiment, **run: Any) -> Experiment:
    section = prepared.config.run.model_copy(update=run)
    return replace(prepared, config=prepared.config.model_copy(update={"run": section}))


def _results(run: Run) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return the records of a run without times, and all states in its checkpoint."""
    records = [record.model_dump(exclude=set(MEASURED_TIMES)) for record in run.records()]
    round, server = run.committed()
    files = run.client_files(round)
    states = {f"client {client}": files.load(client) or {} for client in files.clients}
    return records, {n: wire.to_bytes(s) for n, s in {**states, "server": server}.items()}


@dataclass
class _Simulation:
    """Rounds of a federation as the server and the engines run them, with checks."""

    prepared: Experiment
    restarted: bool = False
    """Write and read all states after each round, and reverse the clients' order."""

    def __post_init__(self) -> None:
        self.blueprint: Blueprint = self.prepared.blueprint()
        self.resources = self.prepared.server_resources()
        self.method, self.task = self.blueprint.method, self.blueprint.task
        # The server knows the clients' architectures only if their networks are sent.
        crosses = self.method.own_network_crosses
        self.known = self.resources if crosses else ServerResources()
        self.last_rounds = [0] * self.task.num_clients
        per_class = self.method.up.names_classes and self.method.down.names_classes
        self.class_masks: dict[int, Tensor] | None = {} if per_class else None

    def run(self, rounds: int) -> tuple[Payload, list[Client]]:
        """Return the server's state and the clients after `rounds` rounds with uploads."""
        clients = [self.blueprint.make(k) for k in range(self.task.num_clients)]
        server = self.prepared.initial_server()
        server = self._server_update(server, [], 1)  # a round without uploads
        for number in range(2, rounds + 2):
            before = _copied(server)
            selected = self._participants(clients, number)
            uploads = [self._client_update(client, server, number) for client in selected]
            _require(_same(server, before), "broadcast changed the server's state")
            uploads.sort(key=lambda upload: upload.client_id)
            server = self._server_update(server, uploads, number)
            for client in clients:
                self._evaluate(client)
            if self.restarted:
                server = wire.from_bytes(wire.to_bytes(server))
                clients = [self._reloaded(client) for client in clients]
        return server, clients

    def _participants(self, clients: list[Client], number: int) -> list[Client]:
        selected = clients[(number + 1) % 2 :]  # so that one joins later, and is left out once
        return selected[::-1] if self.restarted else selected

    def _client_update(self, client: Client, server: Payload, number: int) -> Upload:
        method, client.round = self.method, number
        to = self._recipient(client.id)
        down = method.broadcast(server, to)
        received, shapes = _copied(down), Shapes.of(client)
        _as_declared(down, method.download_specs(shapes), "the download")
        _possible(lambda: method.down.check(down), "the download")
        eval_mode(client)
        with isolated(self.task.seed, "client", client.id, number):
            up = method.client_update(client, down)
        _require(_same(down, received), "client_update changed its download")
        specs = method.upload_specs(shapes)
        expected = method.upload_specs(
            Shapes(self.task, partial(self.resources.network, client.id))
        )
        _require(specs == expected, "the server expects other uploads than the client declares")
        _as_declared(up, specs, "the upload")
        _possible(lambda: method.up.check(up), "the upload")
        max_norm = self.blueprint.max_norm
        _possible(lambda: method.check_upload(self.task, up, max_norm), "the upload")
        self.last_rounds[client.id] = number
        if self.class_masks is not None:
            classes = self.class_masks.setdefault(
                client.id, torch.zeros(self.task.num_classes).bool()
            )
            classes[up["classes"].long()] = True
        samples = len(client.data.train) if method.weighs_by_examples else 0
        return Upload(client.id, samples, up, to.group)

    def _recipient(self, client: int) -> Recipient:
        classes = self.class_masks.get(client) if self.class_masks is not None else None
        architecture = self.known.architecture(client)
        return Recipient(client, classes, self.last_rounds[client], *architecture)

    def _server_update(self, server: Payload, sent: list[Upload], number: int) -> Payload:
        resources, before = self.resources, _copied(server)
        payloads = [_copied(upload.payload) for upload in sent]
        uploads = Uploads(
            sent, self.task, number, resources.device, resources.public, resources.network
        )
        with isolated(self.task.seed, "server-round", round=number):
            after = self.method.server_update(server, uploads)
        _require(_same(server, before), "server_update changed the server's previous state")
        unchanged = all(_same(one.payload, p) for one, p in zip(sent, payloads, strict=True))
        _require(unchanged, "server_update changed an upload")
        for name, tensor in {**after, **self.method.sendable(after)}.items():
            _require(_plain(tensor), f"the server's '{name}' is not a CPU tensor without gradients")
            finite = not tensor.is_floating_point() or bool(tensor.isfinite().all())
            _require(finite, f"the server's '{name}' is not finite")
        return after

    def _evaluate(self, client: Client) -> None:
        classes, test = self.task.num_classes, client.data.test
        for of in (self.method.logits, self.method.global_logits):

            def logits(client: Client, x: Tensor, of: Predict = of) -> Tensor:
                out = of(client, x)
                shape, expected = tuple(out.shape), (len(x), classes)
                _require(shape == expected, f"logits have shape {shape}, not {expected}")
                return out

            evaluate(client, logits, test)

    def _reloaded(self, client: Client) -> Client:
        new = self.blueprint.make(client.id)
        new.load(wire.from_bytes(wire.to_bytes(client.state())))
        return new


def _as_declared(payload: Payload, specs: Sequence[wire.Spec], what: str) -> None:
    for name, tensor in payload.items():
        _require(_plain(tensor), f"'{name}' in {what} is not a CPU tensor without gradients")
    try:
        read = wire.read(wire.to_bytes(payload), specs)
    except WireError as error:
        raise AssertionError(f"{what} is not as declared: {error}") from None
    _require(_same(read, payload), f"{what} changes when it is serialised")


def _possible(check: Callable[[], None], what: str) -> None:
    try:
        check()
    except WireError as error:
        raise AssertionError(f"{what} is rejected: {error}") from None


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not tensor.requires_grad


def _copied(payload: Payload) -> Payload:
    return {name: tensor.clone() for name, tensor in payload.items()}


def _same(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
