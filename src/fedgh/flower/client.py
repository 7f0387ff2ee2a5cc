"""A participant's side: do the job that came, keep the state, answer.

Every message is handled by a new process, so all that a client keeps is in files: one folder for
each experiment and client, one file for each state that the server may still ask for. What a
request says is checked against them: a participant does no round twice and none out of turn.
"""

import faulthandler
import fcntl
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedgh import __version__, config
from fedgh.config import Config
from fedgh.core.checkpoint import ClientFiles, keep_rounds, write_atomic
from fedgh.core.rng import isolated
from fedgh.core.types import Job, Reply, Task
from fedgh.data import partition
from fedgh.data.sources import Source
from fedgh.engines.host import Blueprint, ClientHost, one_thread
from fedgh.errors import ConfigError, FedghError, RunError, import_object
from fedgh.experiment import Experiment, prepare
from fedgh.flower import messages
from fedgh.flower.messages import Request
from fedgh.models import check_extractor

NodeConfig = Mapping[str, str | float | int | bool]
"""What the participant has set when it started its SuperNode."""


@dataclass(frozen=True)
class Participant:
    """What an organisation brings: its network and its data. Neither ever leaves it.

    The extractor maps a batch of `x` to representations [batch, rep_dim]. uint8 inputs
    [n, c, h, w] are images; all others become float32. Labels are 0 to num_classes - 1.
    """

    extractor: nn.Module
    x: Tensor
    y: Tensor


MakeClient = Callable[[Task, NodeConfig], Participant]
"""From what the federation agrees on, and the participant's own settings, to what it brings."""

MakeBlueprint = Callable[[Request, Config, NodeConfig], Blueprint]


def client_app(make_client: MakeClient) -> ClientApp:
    """The app of a participant that brings its own network and data.

    Name it where the SuperNode is started: `--node-config 'client=0 app="my_module:app"'`.
    """

    def bring(request: Request, settings: Config, node: NodeConfig) -> Blueprint:
        experiment = prepare(settings)
        if not experiment.private:
            raise ConfigError("this federation deals out its data; it is not for data of your own")
        return _own(experiment, request.client, make_client, node)

    return _app(bring)


def _app(make_blueprint: MakeBlueprint) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = _answer(message, context.node_config, make_blueprint)
        return Message(messages.answer(reply), reply_to=message)

    return app


def _dealt(request: Request, settings: Config, _: NodeConfig) -> Blueprint:
    """A client of an experiment whose data everybody can have: for rehearsals and research."""
    if settings.data.name == "private":
        raise ConfigError(
            "the data of this federation are the participants' own: name your app when you start "
            "the SuperNode, --node-config 'app=\"my_module:app\" ...' (see fedgh.flower.client_app)"
        )
    experiment = prepare(settings)
    if experiment.fingerprint() != request.fingerprint:
        raise RunError("the data or the versions here are not those of the server")
    return experiment.blueprint()


def _own(
    experiment: Experiment, client: int, make_client: MakeClient, node: NodeConfig
) -> Blueprint:
    task = experiment.task
    with isolated(task.seed, "participant", client):
        brought = make_client(task, node)
    names = experiment.source.class_names
    data = Source("its data", brought.x, brought.y, names)
    if task.input_shape not in ((), data.shape):
        raise ConfigError(f"data.shape is {task.input_shape}, the inputs here have {data.shape}")

    def extractor(_: tuple[int, ...], __: int) -> nn.Module:
        return brought.extractor

    width = Task(**{**vars(task), "input_shape": data.shape})
    check_extractor("the extractor", extractor, width)
    return Blueprint(
        task=task,
        method=experiment.config.method,
        local=experiment.config.local,
        extractors=(extractor,),
        x=data.x,
        y=data.y,
        partition=partition.only(client, task.num_clients, data.y.numpy(), task.seed),
    )


def _answer(message: Message, node: NodeConfig, make_blueprint: MakeBlueprint) -> Reply:
    """Whatever goes wrong here is an answer; what the server may know of it, `_discreet` says."""
    client = round = 0
    try:
        request, down = messages.read_request(message.content)
        client, round = request.client, request.round
        with _watchdog(request.deadline), one_thread(), _at_home(request, node) as home:
            settings = _settings(request, node)
            return _do(request, down, home, make_blueprint(request, settings, node))
    except Exception as problem:
        return Reply(client, round, error=_discreet(problem))


def _settings(request: Request, node: NodeConfig) -> Config:
    """The settings that came with the request; paths are the participant's own affair."""
    table = {name: dict(section) for name, section in request.settings.items()}
    for key in ("dir", "path"):
        table["data"].pop(key, None)
        if key in node:
            table["data"][key] = str(node[key])
    return config.parse(table)


def _do(request: Request, down: bytes | None, home: Path, blueprint: Blueprint) -> Reply:
    """Go on from the state that the server counts on; make sure of the new one, then answer."""
    client, trained = request.client, request.trained
    files = ClientFiles(home, trained)
    if files.round(client) != trained:
        raise RunError(
            f"the state of client {client} after round {trained} is not in its folder; put it "
            "back from a copy"
        )
    host = ClientHost(blueprint, files, explain=_discreet)
    reply = host.run(Job(client, request.round, down, request.evaluate, trained))
    if reply.up is not None:
        host.save(request.round)
        keep_rounds(home, {trained, request.committed, request.round})
    return reply


@contextmanager
def _at_home(request: Request, node: NodeConfig) -> Iterator[Path]:
    """The folder of this experiment and client, for this process alone, if it is its turn."""
    if request.version != __version__:
        raise RunError(f"the server has fedgh {request.version}, here is {__version__}")
    if node.get("client") != request.client:
        raise RunError(
            f"the server takes this node for client {request.client}, its own settings say "
            f"client={node.get('client')!r}"
        )
    home = Path(str(node.get("state", "state"))) / request.experiment / f"client-{request.client}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError("still busy with an earlier message") from None
        turn = [request.start, request.round]
        seen = home / "turn.json"
        if seen.exists() and turn < json.loads(seen.read_text()):
            raise RunError(f"round {request.round} is over; this message is late")
        write_atomic(seen, json.dumps(turn).encode())
        yield home


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """End this process if it hangs, even in native code: it would keep its SuperNode busy."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _discreet(problem: Exception) -> str:
    """What the server may know: our own words. Other errors may quote a participant's data."""
    logging.getLogger("fedgh").error("this client has failed", exc_info=problem)
    if isinstance(problem, FedghError):
        return str(problem)
    return f"{type(problem).__name__}; the participant's own log says more"


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Hand a message to the participant's own app, or to that of dealt data."""
    name = context.node_config.get("app")
    if name is None:
        return _app(_dealt)(message, context)
    sys.path.append(os.getcwd())  # noqa: PTH109 - where the participant started its SuperNode
    try:
        own: ClientApp = import_object(str(name))
    except ConfigError as problem:
        logging.getLogger("fedgh").error(str(problem))
        return _app(_not_importable)(message, context)
    return own(message, context)


def _not_importable(*_: object) -> Blueprint:
    raise ConfigError("the participant's app cannot be imported; its own log says more")
