"""From a prepared experiment to a run folder: run, resume."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from fedgh import config as configs
from fedgh.config import Config
from fedgh.core.records import PrivacySpending, Round
from fedgh.core.server import CLASSES, Engine, Server, ignore
from fedgh.core.threads import one_thread
from fedgh.core.types import Payload, part
from fedgh.engines.serial import Serial
from fedgh.engines.workers import Workers
from fedgh.errors import ConfigError, RunError, printable
from fedgh.methods import METHODS
from fedgh.privacy.accounting import Account
from fedgh.runs.folder import RunFolder, versions
from fedgh.runs.means import MeansCollector, stores_means
from fedgh.runs.summary import summarise
from fedgh.training.callbacks import (
    Callback,
    Callbacks,
    Log,
    OnRound,
    StopTraining,
    as_callback,
)
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.restore import FORGETTING, interrupted
from fedgh.training.run import Run
from fedgh.training.same import check_same
from fedgh.training.trackers import named_callbacks
from fedgh.trust import OWN

MakeEngine = Callable[[Experiment, RunFolder, int, Payload], Engine]
"""From an experiment, its folder, the rounds done and their state to where the clients are."""


def run(
    experiment: Experiment,
    out: Path,
    callbacks: Sequence[Callback | OnRound] = (),
    *,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Run a new experiment into the folder `out`, on the engine that its configuration names.

    A run that a callback has stopped has no summary; `resume` goes on with it.
    """
    if make_engine is None:
        _check_data_are_here(experiment)  # before there is a folder that cannot be used
    told = _told(experiment, callbacks)
    with RunFolder.create(
        out,
        config=experiment.config.to_toml(),
        identity=experiment.identity(),
        clients=experiment.clients(),
        state=Server.initial_state(experiment.task, experiment.initial_server()),
    ) as folder:
        _train(experiment, folder, told, make_engine or local_engine)
    return Run(out, experiment)


def resume(
    path: Path,
    callbacks: Sequence[Callback | OnRound] = (),
    *,
    engine: str | None = None,
    workers: int | None = None,
    overrides: Iterable[str] = (),
    prepare: Callable[[Config], Experiment] = prepare,
    make_engine: MakeEngine | None = None,
) -> Run:
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
        _go_on(experiment, folder, callbacks, make_engine)
    return Run(path, experiment)


def resume_with(
    experiment: Experiment,
    path: Path,
    callbacks: Sequence[Callback | OnRound] = (),
    *,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Go on with the run of this experiment; what its folder names is neither read nor imported."""
    folder = RunFolder.open(path)
    with folder.locked():
        _go_on(experiment, folder, callbacks, make_engine)
    return Run(path, experiment)


def run_or_resume(
    experiment: Experiment,
    path: Path,
    callbacks: Sequence[Callback | OnRound] = (),
    *,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Begin the run of this experiment in a folder, or go on with it if it is there."""
    begun = (path / "config.toml").exists()
    return (resume_with if begun else run)(experiment, path, callbacks, make_engine=make_engine)


def _go_on(
    experiment: Experiment,
    folder: RunFolder,
    callbacks: Sequence[Callback | OnRound],
    make_engine: MakeEngine | None,
) -> None:
    check_same(folder, experiment)
    _train(experiment, folder, _told(experiment, callbacks), make_engine or local_engine)


def _train(
    experiment: Experiment, folder: RunFolder, told: Callbacks, make_engine: MakeEngine
) -> None:
    """Play the rounds that are missing in a folder that this process has locked."""
    task = experiment.task
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        done, state = folder.committed()
        if FORGETTING in state:
            raise interrupted(folder, state)
        if 0 < done < task.rounds:
            _check_server(experiment, folder, state)
        stack.enter_context(closing(told))
        stack.enter_context(suppress(StopTraining))
        try:
            told.started(experiment, folder, folder.records()[:done])
        except StopTraining:
            if done < task.rounds:  # else only the summary is missing
                raise
        for text in _other_versions(folder.update_versions()):
            told.warned(f"{folder.path} {text}")
        account = _account(experiment, folder, done)
        if done == task.rounds:
            folder.rewind()
        else:
            engine = stack.enter_context(closing(make_engine(experiment, folder, done, state)))
            folder.rewind()  # only now: before anything is thrown away, all has been found whole
            _Rounds(experiment, folder, engine, _server(experiment, engine, state), account).play(
                done + 1, told
            )
        summary = summarise(
            experiment.config,
            experiment.source.name,
            task,
            folder.records(),
            experiment.clients(),
            _spent(experiment, account),
            experiment.shared_public.nbytes if experiment.shared_public else None,
        )
        folder.write_summary(summary)


def _check_server(experiment: Experiment, folder: RunFolder, state: Payload) -> None:
    """Refuse a run whose server an earlier version of a built-in method has left."""
    name, method = experiment.config.method_name, experiment.config.method
    held = experiment.initial_server().keys() <= part(state, "server.").keys()
    per_class = method.up.names_classes and method.down.names_classes
    if name in METHODS and not (held and (CLASSES in state or not per_class)):
        raise RunError(
            f"{folder.path}: its server is that of an earlier {name}; go on with the fedgh that "
            "started the run (data.json names it), or run it again"
        )


def _other_versions(before: Mapping[str, str]) -> Iterator[str]:
    """Say which packages are not those with which the run was started last: bits may differ."""
    for package, here in versions().items():
        if before.get(package) != here:
            yield (
                f"was started with {package} {printable(before.get(package, '(unknown)'))}, here "
                f"is {here}: its last bits may differ from those of an undisturbed run"
            )


def _account(experiment: Experiment, folder: RunFolder, done: int) -> Account | None:
    """Return the privacy account of a run after the rounds that are done, if it has one."""
    account = experiment.account()
    if account is not None:
        for record in folder.records()[:done]:
            account.count_requests(record.participants)
        account.raise_counts(folder.request_counts())
    return account


def _spent(experiment: Experiment, account: Account | None) -> PrivacySpending | None:
    """Return the privacy spent so far; None when the run has no privacy."""
    privacy = experiment.privacy
    if privacy is None or account is None:
        return None
    return PrivacySpending(
        protects=privacy.protects,
        delta=experiment.config.privacy.delta,
        noise_multiplier=privacy.noise_multiplier,
        epsilon=account.highest_epsilon,
        epsilon_per_client=account.epsilons,
    )


def _server(experiment: Experiment, engine: Engine, state: Payload) -> Server:
    config = experiment.config
    return Server(
        experiment.task,
        config.method,
        engine,
        state,
        participation=config.federation.participation,
        eval_every=config.run.eval_every,
        evaluate_untrained=config.run.evaluate == "all",
        global_rounds=experiment.global_rounds,
        quorum=config.run.quorum,
        defence=config.defence,
        max_norm=config.run.max_norm,
        strikes=config.run.strikes,
        surroundings=experiment.surroundings(),
    )


@dataclass
class _Rounds:
    """The rounds of a run, played and kept one after the other."""

    experiment: Experiment
    folder: RunFolder
    engine: Engine
    server: Server
    account: Account | None

    def play(self, first: int, told: Callbacks) -> None:
        """Play the rounds from `first` to the last."""
        rounds, every = self.experiment.task.rounds, self.experiment.config.run.checkpoint_every
        kept = first - 1
        for number in range(first, rounds + 1):
            if self.account is not None:
                try:
                    self.account.check(self.server.participants(number))
                except RunError:
                    if kept < number - 1:  # what was paid for is kept
                        self._save_and_commit(number - 1)
                    raise
            record = self._play(number, told)
            keep = number == rounds or number % every == 0
            if keep:
                self.engine.save(number)
            self.folder.append(record)
            if keep:
                self.folder.commit(number, self.server.state())
                kept = number
            try:
                told.finished_round(record)
            except StopTraining:
                if number == rounds:
                    break
                if not keep:
                    self._save_and_commit(number)
                raise
        self.folder.discard_leftovers()

    def _play(self, number: int, told: Callbacks) -> Round:
        """Play a round; return its record."""
        collector = MeansCollector()
        on_upload = collector.add if stores_means(number, self.experiment.task.rounds) else ignore
        record = self.server.round(number, told.replied, on_upload)
        if self.account is not None:
            self.account.count_requests(record.participants)
            record = record.model_copy(update={"epsilon": self.account.highest_epsilon})
        if not collector.empty:
            self.folder.keep_means(number, collector.payload())
        return record

    def _save_and_commit(self, number: int) -> None:
        self.engine.save(number)
        self.folder.commit(number, self.server.state())


def _check_data_are_here(experiment: Experiment) -> None:
    if experiment.private:
        raise ConfigError(
            "data.name = 'private': the data are with the participants; `fedgh flower` reaches them"
        )


def _told(experiment: Experiment, callbacks: Sequence[Callback | OnRound]) -> Callbacks:
    """All that are told of a run: the log, what its configuration names, what the caller gives."""
    named = named_callbacks(experiment.config.run.callbacks)
    return Callbacks([Log(), *named, *map(as_callback, callbacks)])


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
