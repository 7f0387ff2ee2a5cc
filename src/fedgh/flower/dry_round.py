"""One round of a client on trial: its app handles a real request, and nothing is sent.

This process plays the server, with this client as its only participant. States are written into a
temporary folder, so those of real runs stay as they are; the privacy ledger is copied there,
because it decides if the client would answer. Masks need other clients, so with secure aggregation
the upload on trial has none.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from typing_extensions import override

from fedgh.config import Config, SecureSection
from fedgh.core.server import Server
from fedgh.core.threads import one_thread
from fedgh.core.types import Reply
from fedgh.errors import FedghError, RunError, one_line, printable
from fedgh.files import make_folder, read_bytes, write_atomic
from fedgh.flower import client as client_side
from fedgh.flower.bound import NodeConfig, read_bound
from fedgh.flower.engine import Flower
from fedgh.flower.facts import Facts
from fedgh.flower.grid import LocalGrid, Node
from fedgh.flower.messages import Request
from fedgh.flower.server import shared_fingerprint, shared_public, shared_settings
from fedgh.flower.states import MAX_NAME
from fedgh.privacy.ledger import MAX_BYTES
from fedgh.training.experiment import prepare
from fedgh.version import __version__

KEY = b"key"
"""Stands for the client's public key: the network is played, too."""

MAX_DIGEST = 100
"""Maximum size in bytes of data.digest."""


@dataclass
class DryRound:
    """The result of a round on trial."""

    data: str | None = None  # the client's data and network; None if they were not found usable
    error: str | None = None  # why the client sent no upload
    reply: Reply | None = None
    changed: list[str] = field(default_factory=list)  # runs in which the client had other data


def dry_round(folder: Path, node: NodeConfig, facts: Facts) -> DryRound:
    """Let the client in `folder` handle the first round of the federation that `facts` describes.

    `node` are its settings. Its app is imported, and trains as long as in a real round.
    """
    result = DryRound()
    with (
        TemporaryDirectory(dir=folder, prefix=".check-") as scratch,
        chdir(folder),
        redirect_stdout(sys.stderr),
        _log_of_client(result),
    ):
        states, trial = Path(str(node.get("state", "states"))), Path(scratch).absolute() / "states"
        make_folder(trial, 0o700)
        if (states / "privacy.json").is_file():
            ledger = read_bytes(states / "privacy.json", MAX_BYTES)
            write_atomic(trial / "privacy.json", ledger)
        node = {**node, "state": str(trial)}
        try:
            _run(node, facts, result)
        except FedghError as error:
            result.error = result.error or str(error)
        result.changed = list(_runs_with_other_data(trial, states))
    return result


def _run(node: NodeConfig, facts: Facts, result: DryRound) -> None:
    """Run the first round with this client as the only participant."""
    config = settings_of(node, facts)
    if config.secure.enabled:  # one participant alone cannot mask its upload
        config = config.model_copy(update={"secure": SecureSection()})
        spelled = {name: name.lower().replace("_", "-") for name in node}
        node = {name: node[name] for name in node if spelled[name] != "min-peers"}
    experiment = prepare(config)
    task, client = experiment.task, node.get("client")
    if not isinstance(client, int) or not 0 <= client < task.num_clients:
        raise RunError(f"node.conf: client={client}, but they are 0 to {task.num_clients - 1}")
    engine = Flower(
        LocalGrid({1: Node(client_side.app, node, KEY)}),
        {client: KEY},
        experiment="check",
        start=1,
        settings=shared_settings(experiment),
        fingerprint=shared_fingerprint(experiment),
        public=shared_public(experiment),
        deadline=read_bound(node).max_seconds,
        trained={},
        settled=0,
    )
    others = torch.ones(task.num_clients, dtype=torch.bool)
    others[client] = False
    state = Server.initial_state(task, experiment.initial_server()) | {"forgotten": others}
    server = Server(
        task,
        experiment.config.method,
        engine,
        state,
        max_norm=experiment.config.run.max_norm,
        resources=experiment.server_resources(),
    )

    def keep(reply: Reply) -> None:
        result.reply = reply

    with one_thread():
        server.round(1, keep)


def settings_of(node: NodeConfig, facts: Facts) -> Config:
    """Return the server's settings, which are as little trusted as in a request.

    Raise FedghError if the client does not accept them.
    """
    request = Request(
        version=__version__,
        experiment="check",
        start=1,
        client=0,
        round=1,
        trained=0,
        committed=0,
        settled=0,
        evaluate=True,
        evaluate_globally=False,
        deadline=1.0,
        torch=torch.__version__,
        settings=facts.settings,
        fingerprint=None,
    )
    config = client_side.parse_settings(request, node)
    client_side.check_here(config)
    return config


@contextmanager
def _log_of_client(result: DryRound) -> Iterator[None]:
    """Collect what the client writes to its own log: its data, and the text of its first error."""

    class Collector(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            problem = record.exc_info[1] if record.exc_info else None
            if isinstance(problem, Exception):
                known = isinstance(problem, FedghError)
                result.error = result.error or (str(problem) if known else one_line(problem))
            elif record.levelno == logging.INFO:
                result.data = record.getMessage()

    logger = logging.getLogger("fedgh.flower")
    level, propagate, collector = logger.level, logger.propagate, Collector()
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # the errors are shown in one line, without a traceback
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagate


def _runs_with_other_data(trial: Path, states: Path) -> Iterator[str]:
    """Yield the names of runs in `states` whose data were not those of the trial."""
    now = [read_bytes(path, MAX_DIGEST) for path in trial.glob("experiments/*/*/data.digest")]
    for path in sorted(states.glob("experiments/*/client-*/data.digest")):
        if now and read_bytes(path, MAX_DIGEST) not in now:
            yield printable(read_bytes(path.with_name("name.txt"), MAX_NAME).decode())
