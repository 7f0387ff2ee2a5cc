"""The server app: an ordinary run on the Flower engine.

The run folder is on the server's machine. A SuperLink that is started again does not continue its
runs. Start a new run with the same `out`: it continues after the last completed round.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgh import config
from fedgh.config import Config
from fedgh.core.server import Engine, ignore
from fedgh.core.types import Payload
from fedgh.engines.masked import MakeTerms, Masked
from fedgh.errors import ConfigError, FedghError, RunError
from fedgh.flower import logs
from fedgh.flower.current import CurrentFile
from fedgh.flower.engine import Flower
from fedgh.flower.facts import settings_for_clients
from fedgh.flower.keys import read_public_key
from fedgh.flower.masked import Peers, settings_digest
from fedgh.flower.session import Session
from fedgh.runs.folder import RunFolder
from fedgh.secure.terms import Terms
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.loop import run_or_resume

app = ServerApp()
logger = logging.getLogger(__name__)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run or resume the experiment of Flower's run configuration; `flwr log` shows the log."""
    logs.configure()
    serve(grid, context.run_id, context.run_config)


def serve(grid: Grid, run_id: int, settings: Mapping[str, Any]) -> RunFolder:
    """Train the experiment in `settings["experiment"]` into the run folder `settings["out"]`.

    A run that exists there is resumed. `settings["participants"]` is a folder with the public keys
    of the clients: 0.pub, 1.pub and so on. Raise FedghError if the run cannot start or fails.
    """
    out = Path(str(settings["out"]))
    experiment = prepare(config.load(str(settings["experiment"])))
    if experiment.config.published.first_weights:
        raise ConfigError(
            "published.first_weights passes networks from client to client, which Flower's clients "
            "never send; remove it, or use `fedgh run`"
        )
    participants = read_participants(
        Path(str(settings["participants"])), experiment.task.num_clients
    )

    sessions: list[Session] = []  # of this process; those of other servers stay untouched

    def make_engine(experiment: Experiment, folder: RunFolder, done: int, state: Payload) -> Engine:
        session = Session.begin(folder, run_id, done)
        sessions.append(session)
        engine = Flower(
            grid,
            participants,
            experiment=session.experiment,
            start=session.starts,
            settings=shared_settings(experiment),
            fingerprint=shared_fingerprint(experiment),
            public=shared_public(experiment),
            deadline=experiment.config.run.deadline,
            secure_deadline=experiment.config.run.secure_deadline,
            trained=dict(enumerate(state["trained"].tolist())),
            settled=done,
            asking=ignore if experiment.privacy is None else folder.count_requests,
            say=logger.info,
            share=_share_needed(experiment.config),
            current=CurrentFile(folder.path, folder.run_id),
        )
        if experiment.scale is None:
            return engine
        peers = Peers(Path(str(settings["participants"])))
        return Masked(engine, _terms(experiment, session), peers.verify)

    try:
        return run_or_resume(experiment, out, make_engine=make_engine)
    except FedghError as error:
        for session in sessions:
            with suppress(RunError), RunFolder(out).locked():  # another server may hold the lock
                if Session.read(out) == session:
                    replace(session, error=str(error)).write(out)
        raise


def _share_needed(settings: Config) -> float:
    """Return the share of the participants that must answer, or else a round is tried again.

    One upload is needed if all clients take part, since a round without any would end the run.
    """
    clients = settings.federation.clients
    everyone = round(settings.federation.participation * clients) == clients
    return max(settings.run.quorum, 1 / clients if everyone else 0.0)


def read_participants(folder: Path, clients: int) -> dict[int, bytes]:
    """Return the public key of each client, in the form in which Flower reports it.

    Raise ConfigError if a key is missing or not valid, or if two clients have the same key.
    """
    files = {client: folder / f"{client}.pub" for client in range(clients)}
    missing = [client for client, file in files.items() if not file.is_file()]
    if missing:
        raise ConfigError(
            f"{folder} lacks the public keys of clients {', '.join(map(str, missing[:8]))}: "
            f"the experiment has {clients} clients; add a file K.pub for each client K"
        )
    keys = {client: read_public_key(file) for client, file in files.items()}
    if len(set(keys.values())) < clients:
        raise ConfigError(f"{folder}: two clients have the same public key; each needs its own")
    return keys


def _terms(experiment: Experiment, session: Session) -> MakeTerms:
    """Return the function that returns a round's terms, as every client must see them."""
    settings = settings_digest(
        shared_settings(experiment), shared_fingerprint(experiment), shared_public(experiment)
    )
    name, start, minimum = session.experiment, session.starts, experiment.config.secure.min_clients
    return lambda round, asked, download: Terms(
        name, start, round, settings, download, asked, minimum
    )


def shared_fingerprint(experiment: Experiment) -> str | None:
    """Return the fingerprint that the server sends; None if clients have their own data."""
    return None if experiment.private else experiment.fingerprint()


def shared_public(experiment: Experiment) -> str | None:
    """Return the digest of the public data that every client must have."""
    return experiment.shared_public.digest.hex() if experiment.shared_public else None


def shared_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that the server sends to every client."""
    return settings_for_clients(experiment.config)
