"""From a prepared experiment to a run folder: run, resume."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedgh import config as configs
from fedgh.config import Config
from fedgh.core.disk import check_no_link, explaining
from fedgh.core.means import Album, worth_keeping
from fedgh.core.rounds import Engine, Federation, ignore
from fedgh.core.runs import Record, RunFolder
from fedgh.core.types import Payload, Reply
from fedgh.engines.host import one_thread
from fedgh.engines.serial import Serial
from fedgh.engines.workers import Workers
from fedgh.errors import ConfigError, RunError
from fedgh.experiment import Experiment, prepare
from fedgh.finished import FORGETTING, interrupted
from fedgh.report.tensorboard import Scalars, need_tensorboard
from fedgh.summary import summarise
from fedgh.trust import OWN


class Watcher(Protocol):
    """Who wants to see a run while it goes on."""

    def started(self, experiment: Experiment, run: RunFolder, done: list[Record]) -> None:
        """The run begins, or goes on after the rounds in `done`."""

    def replied(self, reply: Reply) -> None:
        """A client has finished its job."""

    def finished_round(self, record: Record) -> None:
        """A round is complete."""


class Enough(Exception):  # noqa: N818
    """A watcher wants no more rounds; those that it has seen are kept."""


class Unwatched:
    """Nobody looks."""

    def started(self, experiment: Experiment, run: RunFolder, done: list[Record]) -> None:
        """Say nothing."""

    def replied(self, reply: Reply) -> None:
        """Say nothing."""

    def finished_round(self, record: Record) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Both:
    """Two who look at the same run."""

    one: Watcher
    other: Watcher

    def started(self, experiment: Experiment, run: RunFolder, done: list[Record]) -> None:
        """Tell both."""
        self.one.started(experiment, run, done)
        self.other.started(experiment, run, done)

    def replied(self, reply: Reply) -> None:
        """Tell both."""
        self.one.replied(reply)
        self.other.replied(reply)

    def finished_round(self, record: Record) -> None:
        """Tell both."""
        self.one.finished_round(record)
        self.other.finished_round(record)


MakeEngine = Callable[[Experiment, RunFolder, int, Payload], Engine]
"""From an experiment, its folder, the rounds done and their state to where the clients are."""


def run(
    experiment: Experiment,
    out: Path,
    watch: Watcher | None = None,
    *,
    make_engine: MakeEngine | None = None,
) -> RunFolder:
    """Run a new experiment into the folder `out`, on the engine that its configuration names."""
    if make_engine is None:
        _check_data_are_here(experiment)  # before there is a folder that cannot be used
    _check_extras(experiment)
    with RunFolder.create(
        out,
        config=experiment.config.to_toml(),
        identity=experiment.identity(),
        clients=experiment.clients(),
        state=Federation.initial_state(experiment.task, experiment.initial_server()),
    ) as folder:
        _train(experiment, folder, watch or Unwatched(), make_engine or local_engine)
    return folder


def resume(
    path: Path,
    watch: Watcher | None = None,
    *,
    engine: str | None = None,
    workers: int | None = None,
    overrides: Iterable[str] = (),
    prepare: Callable[[Config], Experiment] = prepare,
    make_engine: MakeEngine | None = None,
) -> RunFolder:
    """Go on with a run after its last completed round, perhaps on another engine.

    Imports the code and opens the data that its configuration names: only for a run of one's own.

    `overrides` may change what does not change the result: `run.memory=1`.

    A run that was made with its own source or extractors needs a `prepare` that supplies them
    again.
    """
    folder = RunFolder.open(path)
    chosen = {"engine": engine, "workers": workers}
    changes = [f"run.{key}={value}" for key, value in chosen.items() if value is not None]
    with folder.locked():
        try:
            experiment = prepare(configs.load_run(folder.config, [*overrides, *changes], trust=OWN))
        except ConfigError as error:
            raise ConfigError(f"{path}: {'; '.join(str(error).splitlines())}") from None
        _go_on(experiment, folder, watch, make_engine)
    return folder


def resume_with(
    experiment: Experiment,
    path: Path,
    watch: Watcher | None = None,
    *,
    make_engine: MakeEngine | None = None,
) -> RunFolder:
    """Go on with the run of this experiment; what its folder names is neither read nor imported."""
    folder = RunFolder.open(path)
    with folder.locked():
        _go_on(experiment, folder, watch, make_engine)
    return folder


def _go_on(
    experiment: Experiment,
    folder: RunFolder,
    watch: Watcher | None,
    make_engine: MakeEngine | None,
) -> None:
    _check_same(experiment, folder)
    _check_extras(experiment)
    _train(experiment, folder, watch or Unwatched(), make_engine or local_engine)


def _train(
    experiment: Experiment, folder: RunFolder, watch: Watcher, make_engine: MakeEngine
) -> None:
    """Play the rounds that are missing in a folder that this process has locked."""
    config, task = experiment.config, experiment.task
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        done, state = folder.committed()
        if FORGETTING in state:
            raise interrupted(folder, state)
        if config.run.tensorboard:
            with explaining():
                check_no_link(folder.path / "tensorboard")
            scalars = Scalars(folder.path / "tensorboard", done)
            watch = Both(watch, stack.enter_context(closing(scalars)))
        watch.started(experiment, folder, folder.records()[:done])
        account = experiment.account()
        if account is not None:
            for record in folder.records()[:done]:
                account.ask(record["participants"])
            account.at_least(folder.asked())
        if done == task.rounds:
            folder.rewind()
        else:
            engine = stack.enter_context(closing(make_engine(experiment, folder, done, state)))
            folder.rewind()  # only now: before anything is thrown away, all has been found whole
            federation = Federation(
                task,
                config.method,
                engine,
                state,
                participation=config.federation.participation,
                eval_every=config.run.eval_every,
                judge_untrained=config.run.evaluate == "all",
                global_rounds=experiment.global_rounds,
                quorum=config.run.quorum,
                defence=config.defence,
                largest_norm=config.run.largest_norm,
                strikes=config.run.strikes,
            )
            kept = done
            for number in range(done + 1, task.rounds + 1):
                if account is not None:
                    try:
                        account.check(federation.participants(number))
                    except RunError:
                        if kept < number - 1:  # what was paid for is kept
                            engine.save(number - 1)
                            folder.commit(number - 1, federation.state())
                        raise
                album = Album()
                picture = album.add if worth_keeping(number, task.rounds) else ignore
                record = federation.round(number, watch.replied, picture)
                if account is not None:
                    account.ask(record["participants"])
                    record["epsilon"] = account.highest
                if not album.empty:
                    folder.keep_means(number, album.payload())
                keep = number == task.rounds or number % config.run.checkpoint_every == 0
                if keep:
                    engine.save(number)
                folder.append(record)
                if keep:
                    folder.commit(number, federation.state())
                    kept = number
                try:
                    watch.finished_round(record)
                except Enough:
                    if not keep:
                        engine.save(number)
                        folder.commit(number, federation.state())
                    raise
            folder.discard_leftovers()
        summary = summarise(
            config, experiment.source.name, task, folder.records(), experiment.clients()
        )
        if account is not None:
            summary["privacy"] = account.summary()
        folder.write_summary(summary)


def _check_same(experiment: Experiment, folder: RunFolder) -> None:
    """Refuse to go on with other data or settings, or in a folder that was damaged."""
    known = {key: value for key, value in folder.identity().items() if key != "run"}
    if known["fingerprint"] != experiment.fingerprint():
        raise RunError(
            f"{folder.path} was started with other data or settings than are there now; put them "
            "back (a run that was started from Python with its own data is resumed from Python)"
        )
    if known != experiment.identity() or folder.clients() != experiment.clients():
        raise RunError(
            f"{folder.path}: data.json or clients.json is not as the run wrote it; put it back "
            "from a copy"
        )


def _check_data_are_here(experiment: Experiment) -> None:
    if experiment.private:
        raise ConfigError(
            "data.name = 'private': the data are with the participants; `fedgh flower` reaches them"
        )


def _check_extras(experiment: Experiment) -> None:
    if experiment.config.run.tensorboard:
        need_tensorboard()


def local_engine(experiment: Experiment, folder: RunFolder, round: int, state: Payload) -> Engine:
    """Clients whose states are in the run folder, computed where `run.engine` says."""
    _check_data_are_here(experiment)
    files = folder.client_files(round)
    files.check(state["trained"].tolist())
    section = experiment.config.run
    memory = int(section.memory * 2**30)
    if section.engine == "serial":
        return Serial(experiment.blueprint(), files, memory)
    if section.engine == "workers":
        return Workers(experiment.blueprint(), files, memory, section.workers)
    from fedgh.engines.ray import Ray  # an extra

    return Ray(experiment.blueprint(), files, memory, section.workers, section.address)
