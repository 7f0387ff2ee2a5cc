"""A participant's side: do the job that came, keep the state, answer.

Every message is handled by a new process, so all that a client keeps is in files: one folder for
each experiment and client, one file for each state that the server may still ask for. What a
request says is checked against them: a participant does no round twice and none out of turn. What
it has answered is kept with them, see `answers`.

The server is not trusted: what its settings name is imported, opened or fetched only if it is part
of fedgh or the participant has allowed it; what it asks for has limits, see `bound`; and its words
are never used as names of files.
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
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.errors import ConfigError, RunError, WireError, import_object, printable
from fedgh.files import discard_parts, locked, make_folder, read_bytes, write_atomic
from fedgh.flower import messages
from fedgh.flower.answers import Answers, Question
from fedgh.flower.bound import Bound, NodeConfig, PublicError, keep_bound, read_bound
from fedgh.flower.messages import Request
from fedgh.runs.checkpoint import ClientFiles, keep_rounds
from fedgh.runs.sealed import MAX_STATE, pack, unpack
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.public import missing_data_set
from fedgh.trust import OWN, ForeignError, Trust
from fedgh.version import __version__

logger = logging.getLogger(__name__)

MakeBlueprint = Callable[[Request, Path, NodeConfig], Blueprint]
"""From a request, the client's folder and the participant's settings to the client."""

OWN_SETTINGS = {
    ("data", "dir"): "dir",
    ("data", "path"): "path",
    ("public", "dir"): "public-dir",
    ("public", "path"): "public-path",
    ("run", "device"): "device",
}
"""Settings that no server decides, and their names in node.conf."""

MAX_QUOTED = 300
"""Characters of a server's setting that are quoted in an answer."""

MAX_TURN = 1000
"""Bytes of turn.json: two numbers."""


def app_of(make_blueprint: MakeBlueprint) -> ClientApp:
    """An app that does the jobs of the client that `make_blueprint` describes."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        _show_log()
        reply = answer(message, context.node_config, make_blueprint)
        return Message(messages.answer(reply), reply_to=message)

    return app


def dealt(request: Request, _: Path, node: NodeConfig) -> Blueprint:
    """A client of an experiment with public data: for rehearsals and research."""
    config = parse_settings(request, node)
    if config.data.name == "private":
        raise PublicError(
            "the data of this federation are the participants' own: name your app when you start "
            "the SuperNode, --node-config 'app=\"my_module:app\" ...' (see fedgh.flower.client_app)"
        )
    check_here(config)
    experiment = _prepared(json.dumps(config.to_table()))
    if experiment.fingerprint() != request.fingerprint:
        raise PublicError("the data or the versions here are not those of the server")
    return experiment.blueprint()


def check_here(config: Config) -> None:
    """Refuse official data that are not on this machine."""
    missing = missing_data_set(config)
    if missing is not None:
        raise PublicError(
            f"{missing} is not on this participant's machine, and is not fetched because a server "
            f"says so; the participant can: fedgh data fetch {missing}"
        )


@lru_cache(maxsize=1)
def _prepared(settings: str) -> Experiment:
    """Once for all clients and rounds where these share a process."""
    return prepare(config.parse(json.loads(settings)))


def parse_settings(
    request: Request, node: NodeConfig, methods: Collection[str] = (), *, own_network: bool = False
) -> Config:
    """The settings that came with the request, if the participant accepts them.

    They may name `methods` beside what is part of fedgh and what the participant has allowed. Paths
    and the device are always the participant's own; so is its network, if it has one.
    """
    bound = read_bound(node)
    table = {name: dict(section) for name, section in request.settings.items()}
    own = {**OWN_SETTINGS, **({("model", "extractors"): "extractors"} if own_network else {})}
    for section, key in own:
        table.setdefault(section, {}).pop(key, None)
    try:
        config.parse(table, Trust(names=frozenset({*bound.allow, *methods}), limits=bound))
    except ForeignError as problem:
        setting = printable(problem.setting)[:MAX_QUOTED]  # room for the rest
        raise PublicError(
            f"{setting} is not part of fedgh, and this participant does not allow it"
        ) from None
    except ConfigError as problem:
        raise PublicError(printable(str(problem))) from None
    for (section, key), name in own.items():
        if name in node:
            table[section][key] = str(node[name])
    return config.parse(table, OWN)  # what the server named has been accepted


def answer(message: Message, node: NodeConfig, make_blueprint: MakeBlueprint) -> Reply:
    """Whatever goes wrong here is an answer; what the server may know of it, `_discreet` says."""
    client = round = 0
    try:
        request, down = messages.read_request(message.content)
        client, round = request.client, request.round
        bound = read_bound(node)
        with (
            _watchdog(min(request.deadline, bound.max_seconds)),
            one_thread(),
            _at_home(request, node, bound) as home,
        ):
            task = _Assignment(request, home, bound, node, make_blueprint)
            return task.judge() if down is None else task.train(down)
    except Exception as problem:
        return Reply(client, round, error=_discreet(problem))


@dataclass(frozen=True)
class _Assignment:
    """A request with all that it takes to answer it."""

    request: Request
    home: Path
    bound: Bound
    node: NodeConfig
    make_blueprint: MakeBlueprint

    def judge(self) -> Reply:
        """Look at the client as it is."""
        return self._host().run(self._job(None))

    def train(self, down: bytes) -> Reply:
        """Make sure of the new state, then of the answer, then send it; once for each question."""
        request, answers = self.request, Answers(self.home / "answers")
        question = Question.of(request, down)
        reply = answers.again(question)
        if reply is None:
            host = self._host()
            self._check_room(answers)
            releases = host.will_release(request.client)
            keep_bound(self.bound, host.blueprint, _states(self.node), releases=releases)
            answers.forget_from(request.round)
            reply = host.run(self._job(down))
            if reply.up is None:
                return reply
            self._keep_release(host)
            host.save(request.round)
            answers.keep(question, reply)
        answers.forget_up_to(self._settled)
        keep_rounds(self.home, {request.trained, request.committed} | answers.rounds())
        return reply

    def _keep_release(self, host: ClientHost) -> None:
        """Make sure of statistics with noise before they are sent: they are never drawn again.

        A state is given up when its answer came too late or was rejected; they are not.
        """
        released = host.released(self.request.client)
        if released and not self._release.exists():
            write_atomic(self._release, pack(moved(released, CPU)))

    @property
    def _release(self) -> Path:
        return self.home / "release.safetensors"

    def _released(self) -> Payload:
        if not self._release.exists():
            return {}
        try:
            return unpack(read_bytes(self._release, MAX_STATE))[1]
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self._release} cannot be read ({error}); put it back from a copy"
            ) from None

    def _check_room(self, answers: Answers) -> None:
        """Refuse a further round while too many are kept: to forget one would allow new noise."""
        open_rounds = [round for round in answers.rounds() if round > self._settled]
        if len(open_rounds) >= self.bound.max_rounds_kept:
            raise PublicError(
                f"this participant keeps {self.bound.max_rounds_kept} rounds that the server has "
                "not committed (max-rounds-kept)"
            )

    @property
    def _settled(self) -> int:
        """The last round that cannot be asked for again, however the server counts."""
        return min(self.request.settled, self.request.round - 1)

    def _job(self, down: bytes | None) -> Job:
        ask = self.request
        return Job(
            client_id=ask.client,
            round=ask.round,
            down=down,
            evaluate=ask.evaluate,
            trained=ask.trained,
            evaluate_globally=ask.evaluate_globally,
        )

    def _host(self) -> ClientHost:
        """The client in the state that the server counts on."""
        client, trained = self.request.client, self.request.trained
        blueprint = self.make_blueprint(self.request, self.home, self.node)
        files = ClientFiles(self.home, trained, self.request.experiment)
        if files.round(client) != trained:
            raise PublicError(
                f"the state of client {client} after round {trained} is not in its folder; put it "
                "back from a copy"
            )
        withhold_metrics = blueprint.withhold_metrics or self.bound.least != "nothing"
        return ClientHost(
            replace(blueprint, withhold_metrics=withhold_metrics),
            files,
            explain=_discreet,
            released=self._released(),
        )


def _states(node: NodeConfig) -> Path:
    """Where the participant keeps all that it keeps."""
    return Path(str(node.get("state", "states")))


def home_of(states: Path, experiment: str, client: int) -> Path:
    """The folder of an experiment and client: the server's word, hashed, cannot name another."""
    digest = blake2b(experiment.encode(), digest_size=16).hexdigest()
    return states / "experiments" / digest / f"client-{client}"


@contextmanager
def _at_home(request: Request, node: NodeConfig, bound: Bound) -> Iterator[Path]:
    """The folder of this experiment and client, for this process alone, if it is its turn."""
    if request.version != __version__:
        raise PublicError(f"the server has fedgh {request.version}, here is {__version__}")
    if request.torch != torch.__version__:
        logger.warning(
            "the server has torch %s, here is %s: results may differ in their last bits",
            *(printable(request.torch), torch.__version__),
        )
    if node.get("client") != request.client:
        raise PublicError(
            f"the server takes this node for client {request.client}, its own settings say "
            f"client={node.get('client')!r}"
        )
    home = home_of(_states(node), request.experiment, request.client)
    if not home.exists():
        _make_home(home, bound)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(home / ".lock"))
        except BlockingIOError:
            raise PublicError("still busy with an earlier message") from None
        discard_parts(home)  # of a process that was killed here
        if not (home / "name.txt").exists():  # for the participant, who sees a hash
            write_atomic(home / "name.txt", f"{request.experiment}\n".encode())
        turn = [request.start, request.round]
        seen = home / "turn.json"
        if seen.exists() and turn < json.loads(read_bytes(seen, MAX_TURN)):
            raise PublicError(f"round {request.round} is over; this message is late")
        write_atomic(seen, json.dumps(turn).encode())
        yield home


def _make_home(home: Path, bound: Bound) -> None:
    everything = home.parent.parent
    make_folder(everything, 0o700)
    if not home.parent.exists() and len(list(everything.iterdir())) >= bound.max_experiments:
        raise PublicError(
            f"this participant keeps the states of {bound.max_experiments} experiments already "
            "(max-experiments)"
        )
    make_folder(home.parent, 0o700)
    make_folder(home, 0o700)


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """End this process if it hangs, even in native code: it would keep its SuperNode busy."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _discreet(problem: Exception) -> str:
    """What the server may know. Any other words may quote a participant's data or files."""
    log(problem)
    if isinstance(problem, PublicError | WireError):
        return str(problem)
    return f"{type(problem).__name__}; the participant's own log says more"


def _show_log() -> None:
    """Show warnings and errors of fedgh on standard error, where the SuperNode's log is."""
    if logging.lastResort is not None and not logging.getLogger().hasHandlers():
        logging.getLogger("fedgh").addHandler(logging.lastResort)


def log(problem: Exception) -> None:
    """Tell the participant all about it."""
    logger.error("this client has failed", exc_info=problem)


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Hand a message to the participant's own app, or to that of dealt data."""
    _show_log()
    name = context.node_config.get("app")
    if name is None:
        return app_of(dealt)(message, context)
    try:
        with _watchdog(_seconds(message, context.node_config)):
            return _import_app(str(name))(message, context)
    except Exception as problem:
        log(problem)
        return app_of(_not_usable)(message, context)


def _seconds(message: Message, node: NodeConfig) -> float:
    """How long this message may take: also the import of the participant's code may hang."""
    limit = read_bound(node).max_seconds
    try:
        return min(limit, messages.read_request(message.content)[0].deadline)
    except WireError:
        return limit


def _import_app(name: str) -> ClientApp:
    sys.path.append(os.getcwd())  # noqa: PTH109 - where the participant started its SuperNode
    own = import_object(name)
    if not isinstance(own, ClientApp):
        raise ConfigError(f"app = '{name}' is not a ClientApp; see fedgh.flower.client_app")
    return own


def _not_usable(*_: object) -> Blueprint:
    raise PublicError("the participant's app cannot be used; its own log says more")
