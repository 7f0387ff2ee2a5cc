"""The client's side of a federation: run the job of a message, store the state, answer.

A new process handles every message, so everything that a client keeps is in files: one folder for
each experiment and client, one file for each state that the server may still request. The client
checks a request against these files, and runs no round twice and none out of order. Its answers are
stored there, too, see `answers`.

The server is not trusted. Names in its settings are imported, opened or downloaded only if they are
part of fedgh or the client has allowed them. Its requests have limits, see `bound`. Its texts are
never used as file names.
"""

import faulthandler
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedgh import config
from fedgh.config import Config
from fedgh.core.threads import one_thread
from fedgh.core.types import CPU, Job, Payload, Reply, moved
from fedgh.data.sources import Source
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.errors import (
    ConfigError,
    FedghError,
    RunError,
    WireError,
    import_object,
    printable,
)
from fedgh.files import discard_parts, locked, make_folder, read_bytes, write_atomic
from fedgh.flower import messages
from fedgh.flower.answers import Answers, RequestIdentity
from fedgh.flower.bound import Bound, NodeConfig, PublicError, keep_bound, read_bound
from fedgh.flower.masked import MaskedRound
from fedgh.flower.messages import Request
from fedgh.flower.states import keep_request
from fedgh.runs.checkpoint import ClientFiles, keep_rounds
from fedgh.runs.sealed import MAX_STATE, pack, unpack
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.public import missing_data_set
from fedgh.trust import OWN, ForeignError, Trust
from fedgh.version import __version__

logger = logging.getLogger(__name__)

MakeBlueprint = Callable[[Request, Path, NodeConfig], Blueprint]
"""Function of a request, the client's folder and its settings that returns its blueprint."""

OWN_SETTINGS = {
    ("data", "dir"): "dir",
    ("data", "path"): "path",
    ("public", "dir"): "public-dir",
    ("public", "path"): "public-path",
    ("run", "device"): "device",
}
"""Settings that only the client decides, and their names in node.conf."""

DATA_DIGEST = "data.digest"
"""The file with the digest of the client's data in the first round of a run."""

MAX_QUOTED = 300
"""Maximum number of characters of a server's setting that an answer quotes."""

MAX_TURN = 1000
"""Maximum size in bytes of turn.json, which holds two numbers."""


class BlueprintApp(ClientApp):
    """An app that runs the jobs of the client that `make_blueprint` describes."""

    def __init__(self, make_blueprint: MakeBlueprint) -> None:
        super().__init__()
        self.make_blueprint = make_blueprint

        @self.train()
        def train(message: Message, context: Context) -> Message:
            _show_log()
            reply = answer(message, context.node_config, make_blueprint)
            return Message(messages.pack_answer(reply), reply_to=message)


def partitioned_client(request: Request, _: Path, node: NodeConfig) -> Blueprint:
    """Return a client whose samples come from the partition of a data set, not from its own data.

    For rehearsals and research.
    """
    config = parse_settings(request, node)
    if config.data.name == "private":
        raise PublicError(
            "in this federation each client has its own data; name your app in node.conf: "
            'app="my_module:app" (see fedgh.flower.client_app), or for a folder of images '
            'app="fedgh.flower.own_data:app"'
        )
    check_here(config)
    experiment = _prepared(json.dumps(config.to_table()))
    if experiment.fingerprint() != request.fingerprint:
        raise PublicError("this client's data or versions are not those of the server")
    return experiment.blueprint()


def check_here(config: Config) -> None:
    """Raise PublicError if a data set of the configuration is not on this machine."""
    missing = missing_data_set(config)
    if missing is not None:
        raise PublicError(
            f"{missing} is not on this client's machine, and a client downloads nothing at the "
            f"server's request; run there: fedgh data fetch {missing}"
        )


@lru_cache(maxsize=1)
def _prepared(settings: str) -> Experiment:
    """Return the experiment; cached for federations whose clients share a process."""
    return prepare(config.parse(json.loads(settings)))


def parse_settings(
    request: Request, node: NodeConfig, methods: Collection[str] = (), *, own_network: bool = False
) -> Config:
    """Return the settings of a request; raise PublicError if the client does not accept them.

    They may name parts of fedgh, names that the client allows in node.conf, and `methods`. Paths
    and the device always come from the client's own settings; with `own_network` its network, too.
    """
    bound = read_bound(node)
    table = {name: dict(section) for name, section in request.settings.items()}
    own_keys = {**OWN_SETTINGS, **({("model", "extractors"): "extractors"} if own_network else {})}
    for section, key in own_keys:
        table.setdefault(section, {}).pop(key, None)
    try:
        config.parse(table, Trust(names=frozenset({*bound.allow, *methods}), limits=bound))
    except ForeignError as problem:
        setting = printable(problem.setting)[:MAX_QUOTED]  # leaves room for the rest of the message
        raise PublicError(
            f"{setting} is not part of fedgh, and this client does not allow it"
        ) from None
    except ConfigError as problem:
        raise PublicError(printable(str(problem))) from None
    for (section, key), name in own_keys.items():
        if name in node:
            table[section][key] = str(node[name])
    return config.parse(table, OWN)  # the server's names were checked above


def answer(message: Message, node: NodeConfig, make_blueprint: MakeBlueprint) -> Reply:
    """Return the reply to a message; an exception becomes its error, in the text of `_redacted`."""
    client = round = 0
    try:
        request, down = messages.read_request(message.content)
        client, round = request.client, request.round
        bound = read_bound(node)
        with (
            _watchdog(min(request.deadline, bound.max_seconds)),
            one_thread(),
            _locked_folder(request, node, bound) as folder,
        ):
            step = request.secure
            if step is not None and step.phase != "upload":
                return MaskedRound(request, folder, bound, node).answer(step)
            task = _Assignment(request, folder, bound, node, make_blueprint)
            return task.evaluate() if down is None else task.train(down)
    except Exception as problem:
        return Reply(client, round, error=_redacted(problem))


@dataclass(frozen=True)
class _Assignment:
    """A request with everything that is needed to answer it."""

    request: Request
    folder: Path
    bound: Bound
    node: NodeConfig
    make_blueprint: MakeBlueprint

    def evaluate(self) -> Reply:
        """Return the metrics of the client without training it."""
        return self._host().run(self._job(None))

    def train(self, down: bytes) -> Reply:
        """Train the client and return its reply; a repeated request gets the stored reply.

        The new state, then the reply, are on disk before the reply is sent.
        """
        request, answers = self.request, Answers(self.folder / "answers")
        identity = RequestIdentity.of(request, down)
        reply = answers.find(identity)
        if reply is None:
            host = self._host()
            masked_round = MaskedRound(request, self.folder, self.bound, self.node)
            masked = masked_round.masking(host.blueprint, down)
            self._check_room(answers)
            releases = host.will_release(request.client)
            keep_bound(self.bound, host.blueprint, _states(self.node), releases=releases)
            answers.forget_from(request.round)
            reply = host.run(self._job(down))
            if reply.up is None:
                return reply
            reply = masked(reply)
            self._store_release(host)
            host.save(request.round)
            answers.store(identity, reply)
        else:  # a restarted server may count less than before
            keep_request(self.folder, request)
        answers.forget_up_to(self._settled)
        keep_rounds(self.folder, {request.trained, request.committed} | answers.rounds())
        return reply

    def _store_release(self, host: ClientHost) -> None:
        """Write noisy statistics to disk before they are sent, so that they are never drawn again.

        A client's state is dropped when its answer was late or rejected; these statistics stay.
        """
        released = host.released(self.request.client)
        if released and not self._release_file.exists():
            write_atomic(self._release_file, pack(moved(released, CPU)))

    @property
    def _release_file(self) -> Path:
        return self.folder / "release.safetensors"

    def _read_release(self) -> Payload:
        if not self._release_file.exists():
            return {}
        try:
            return unpack(read_bytes(self._release_file, MAX_STATE))[1]
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self._release_file} cannot be read ({error}); put it back from a copy"
            ) from None

    def _check_room(self, answers: Answers) -> None:
        """Raise PublicError if too many answers are stored.

        The client cannot delete one instead: for its round, new noise would have to be drawn.
        """
        open_rounds = [round for round in answers.rounds() if round > self._settled]
        if len(open_rounds) >= self.bound.max_rounds_kept:
            raise PublicError(
                f"this client stores {self.bound.max_rounds_kept} rounds that the server has not "
                "committed, its maximum (max-rounds-kept)"
            )

    @property
    def _settled(self) -> int:
        """The last round that the server cannot request again, whatever it claims."""
        return min(self.request.settled, self.request.round - 1)

    def _job(self, down: bytes | None) -> Job:
        request = self.request
        return Job(
            client_id=request.client,
            round=request.round,
            down=down,
            evaluate=request.evaluate,
            trained=request.trained,
            evaluate_globally=request.evaluate_globally,
        )

    def _host(self) -> ClientHost:
        """Return a host with the client in the state that the server counts."""
        client, trained = self.request.client, self.request.trained
        blueprint = self._blueprint()
        files = ClientFiles(self.folder, trained, self.request.experiment)
        if files.round(client) != trained:
            raise PublicError(
                f"the state of client {client} after round {trained} is not in its folder; put it "
                "back from a copy"
            )
        keep_request(self.folder, self.request)
        careful = self.bound.least != "nothing" or self.bound.min_peers is not None
        withhold_metrics = blueprint.withhold_metrics or careful
        return ClientHost(
            replace(blueprint, withhold_metrics=withhold_metrics),
            files,
            explain=_redacted,
            released=self._read_release(),
        )

    def _blueprint(self) -> Blueprint:
        """Return the client's blueprint; raise PublicError if its network or data do not fit."""
        try:
            blueprint = self.make_blueprint(self.request, self.folder, self.node)
            source = blueprint.source(self.request.client)
            if not (self.folder / DATA_DIGEST).exists():
                write_atomic(self.folder / DATA_DIGEST, source.digest)
            elif not is_unchanged(self.folder, source):
                raise ConfigError(
                    "the data are not those of the first round; restore them, or use the new data "
                    "in a new run"
                )
        except PublicError:
            raise
        except FedghError as problem:
            raise PublicError(
                "the client's network or data do not fit this federation; see the client's own log"
            ) from problem
        return blueprint


def is_unchanged(folder: Path, data: Source) -> bool:
    """Return true if the data are those of the first round, whose digest is in the client's folder.

    Changed data would be split differently, so test samples would be trained on.
    """
    path = folder / DATA_DIGEST
    return path.exists() and read_bytes(path, len(data.digest)) == data.digest


def _states(node: NodeConfig) -> Path:
    """Return the folder for all files that the client keeps."""
    return Path(str(node.get("state", "states")))


def folder_of(states: Path, experiment: str, client: int) -> Path:
    """Return the folder of an experiment and client.

    The experiment's name comes from the server; as a hash it cannot lead to another folder.
    """
    digest = blake2b(experiment.encode(), digest_size=16).hexdigest()
    return states / "experiments" / digest / f"client-{client}"


@contextmanager
def _locked_folder(request: Request, node: NodeConfig, bound: Bound) -> Iterator[Path]:
    """Lock and yield the folder of this experiment and client.

    Raise PublicError for a request that is for another version or client, that is late, or that
    comes while an earlier one is still handled.
    """
    if request.version != __version__:
        raise PublicError(
            f"the server has fedgh {request.version}, this client has {__version__}; install the "
            "same version"
        )
    if request.torch != torch.__version__:
        logger.warning(
            "the server has torch %s, this client has %s: results may differ in their last bits",
            *(printable(request.torch), torch.__version__),
        )
    if node.get("client") != request.client:
        raise PublicError(
            f"the server takes this node for client {request.client}, its node.conf says "
            f"client={node.get('client')!r}"
        )
    folder = folder_of(_states(node), request.experiment, request.client)
    if not folder.exists():
        _create_folder(folder, bound)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / ".lock"))
        except BlockingIOError:
            raise PublicError("still busy with an earlier message") from None
        discard_parts(folder)  # of a process that was killed
        if not (folder / "name.txt").exists():  # for people: the folder's name is a hash
            write_atomic(folder / "name.txt", f"{request.experiment}\n".encode())
        turn = [request.start, request.round]
        last_turn = folder / "turn.json"
        if last_turn.exists() and turn < json.loads(read_bytes(last_turn, MAX_TURN)):
            raise PublicError(f"round {request.round} is over; this message is late")
        write_atomic(last_turn, json.dumps(turn).encode())
        yield folder


def _create_folder(folder: Path, bound: Bound) -> None:
    experiments = folder.parent.parent
    make_folder(experiments, 0o700)
    if not folder.parent.exists() and len(list(experiments.iterdir())) >= bound.max_experiments:
        raise PublicError(
            f"this client stores the states of {bound.max_experiments} experiments, its maximum "
            "(max-experiments)"
        )
    make_folder(folder.parent, 0o700)
    make_folder(folder, 0o700)


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """End this process after some seconds, even in native code; else its SuperNode stays busy."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _redacted(problem: Exception) -> str:
    """Log an exception, and return the text that the server may receive.

    That is the type alone for most exceptions: their texts may quote the client's data or files. A
    PublicError hides the exception that caused it, which is logged in its place.
    """
    cause = problem.__cause__
    log(cause if isinstance(problem, PublicError) and isinstance(cause, Exception) else problem)
    if isinstance(problem, PublicError | WireError):
        return str(problem)
    return f"{type(problem).__name__}; see the client's own log"


def _show_log() -> None:
    """Print warnings and errors of fedgh to standard error, unless the process has a log."""
    own = logging.getLogger("fedgh")
    silent = all(isinstance(handler, logging.NullHandler) for handler in own.handlers)
    if silent and logging.lastResort is not None and not logging.getLogger().hasHandlers():
        own.addHandler(logging.lastResort)


def log(problem: Exception) -> None:
    """Write an exception with its traceback to the client's own log."""
    logger.error("this client has failed", exc_info=problem)


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Call the client's own app if node.conf names one, otherwise that for partitioned data."""
    _show_log()
    name = context.node_config.get("app")
    if name is None:
        return BlueprintApp(partitioned_client)(message, context)
    try:
        with _watchdog(_seconds(message, context.node_config)):
            return import_app(str(name))(message, context)
    except Exception as problem:
        log(problem)
        return BlueprintApp(_not_usable)(message, context)


def _seconds(message: Message, node: NodeConfig) -> float:
    """Return the maximum duration for this message; even the import of the app may hang."""
    limit = read_bound(node).max_seconds
    try:
        return min(limit, messages.read_request(message.content)[0].deadline)
    except WireError:
        return limit


def import_app(name: str) -> ClientApp:
    """Return the app that node.conf names; its module may be in the current folder."""
    sys.path.append(os.getcwd())  # noqa: PTH109 - the folder in which the SuperNode was started
    own_app = import_object(name)
    if not isinstance(own_app, ClientApp):
        raise ConfigError(f"app = '{name}' is not a ClientApp; see fedgh.flower.client_app")
    return own_app


def _not_usable(*_: object) -> Blueprint:
    raise PublicError("the client's app cannot be used; see the client's own log")
