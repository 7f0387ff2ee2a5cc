"""Run an experiment into a run folder, or resume it."""

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
from fedgh.secure.terms import Terms, digest_of
from fedgh.training.callbacks import (
    Callback,
    Callbacks,
    Log,
    OnRound,
    StopTraining,
    as_callback,
)
from fedgh.training.difficulty import linear_accuracy
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.restore import FORGETTING, unfinished_forget
from fedgh.training.run import Run
from fedgh.training.same import check_same
from fedgh.training.trackers import named_callbacks
from fedgh.trust import OWN

MakeEngine = Callable[[Experiment, RunFolder, int, Payload], Engine]
"""Function that returns an engine, given an experiment, its run folder, the last committed round
and the server's state after it."""


def run(
    experiment: Experiment,
    out: Path,
    callbacks: Sequence[Callback | OnRound] = (),
    *,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Run a new experiment into the folder `out`, on the engine that its configuration names.

    A run that a callback stopped has no summary; `resume` continues it.
    """
    if make_engine is None:
        _check_data_are_here(experiment)  # before an unusable folder is created
    listeners = _all_callbacks(experiment, callbacks)
    with RunFolder.create(
        out,
        config=experiment.config.to_toml(),
        identity=experiment.identity(),
        clients=experiment.clients(),
        state=Server.initial_state(experiment.task, experiment.initial_server()),
    ) as folder:
        _train(experiment, folder, listeners, make_engine or local_engine)
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
    """Resume a run after its last committed round, on the same engine or another.

    This imports the code and opens the data that the run's configuration names, so the folder must
    be trusted.

    `overrides` may change settings that do not change the result, such as `run.memory=1`.

    If the run was started with its own source or extractors, `prepare` must supply them again.
    """
    folder = RunFolder.open(path)
    chosen = {"engine": engine, "workers": workers}
    changes = [f"run.{key}={value}" for key, value in chosen.items() if value is not None]
    with folder.locked():
        try:
            experiment = prepare(configs.load_run(folder.config, [*overrides, *changes], trust=OWN))
        except ConfigError as error:
            raise ConfigError(f"{path}: {'; '.join(str(error).splitlines())}") from None
        _resume(experiment, folder, callbacks, make_engine)
    return Run(path, experiment)


def resume_with(
    experiment: Experiment,
    path: Path,
    callbacks: Sequence[Callback | OnRound] = (),
    *,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Resume the run of this experiment; data and code named in its folder are not used."""
    folder = RunFolder.open(path)
    with folder.locked():
        _resume(experiment, folder, callbacks, make_engine)
    return Run(path, experiment)


def run_or_resume(
    experiment: Experiment,
    path: Path,
    callbacks: Sequence[Callback | OnRound] = (),
    *,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Start the run of this experiment in a folder, or resume it if it exists."""
    exists = (path / "config.toml").exists()
    return (resume_with if exists else run)(experiment, path, callbacks, make_engine=make_engine)


def _resume(
    experiment: Experiment,
    folder: RunFolder,
    callbacks: Sequence[Callback | OnRound],
    make_engine: MakeEngine | None,
) -> None:
    check_same(folder, experiment)
    listeners = _all_callbacks(experiment, callbacks)
    _train(experiment, folder, listeners, make_engine or local_engine)


def _train(
    experiment: Experiment, folder: RunFolder, listeners: Callbacks, make_engine: MakeEngine
) -> None:
    """Run the missing rounds in a folder that this process has locked, and write the summary."""
    task = experiment.task
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        done, state = folder.committed()
        if FORGETTING in state:
            raise unfinished_forget(folder, state)
        if 0 < done < task.rounds:
            _check_server(experiment, folder, state)
        stack.enter_context(closing(listeners))
        stack.enter_context(suppress(StopTraining))
        try:
            listeners.started(experiment, folder, folder.records()[:done])
        except StopTraining:
            if done < task.rounds:  # otherwise only the summary is missing
                raise
        for text in _other_versions(folder.update_versions()):
            listeners.warned(f"{folder.path} {text}")
        account = _account(experiment, folder, done)
        if done == task.rounds:
            folder.rewind()
        else:
            engine = stack.enter_context(closing(make_engine(experiment, folder, done, state)))
            folder.rewind()  # only after all files that the run needs have been checked
            _Rounds(experiment, folder, engine, _server(experiment, engine, state), account).run(
                done + 1, listeners
            )
        summary = summarise(
            experiment.config,
            experiment.source.name,
            task,
            folder.records(),
            experiment.clients(),
            _spent(experiment, account),
            experiment.shared_public.nbytes if experiment.shared_public else None,
            linear_accuracy(experiment),
        )
        folder.write_summary(summary)


def _check_server(experiment: Experiment, folder: RunFolder, state: Payload) -> None:
    """Raise RunError if the server's state is that of an earlier version of a built-in method."""
    name, method = experiment.config.method_name, experiment.config.method
    complete = experiment.initial_server().keys() <= part(state, "server.").keys()
    per_class = method.up.names_classes and method.down.names_classes
    if name in METHODS and not (complete and (CLASSES in state or not per_class)):
        raise RunError(
            f"{folder.path}: its server's state is that of an earlier {name}; resume with the "
            "version of fedgh that started the run (see data.json), or run it again"
        )


def _other_versions(before: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each package whose version differs from that of the last start."""
    for package, here in versions().items():
        if before.get(package) != here:
            yield (
                f"was started with {package} {printable(before.get(package, '(unknown)'))}, this "
                f"is {here}: results may differ in the last bits from an uninterrupted run"
            )


def _account(experiment: Experiment, folder: RunFolder, done: int) -> Account | None:
    """Return the privacy account after the committed rounds; None without privacy."""
    account = experiment.account()
    if account is not None:
        for record in folder.records()[:done]:
            account.count_requests(record.participants)
        account.raise_counts(folder.request_counts())
    return account


def _spent(experiment: Experiment, account: Account | None) -> PrivacySpending | None:
    """Return the privacy spent so far; None without privacy."""
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
        summation=experiment.summation(),
        resources=experiment.server_resources(),
    )


@dataclass
class _Rounds:
    """The rounds of a run, executed and stored one after the other."""

    experiment: Experiment
    folder: RunFolder
    engine: Engine
    server: Server
    account: Account | None

    def run(self, first: int, listeners: Callbacks) -> None:
        """Run the rounds from `first` to the last."""
        rounds, every = self.experiment.task.rounds, self.experiment.config.run.checkpoint_every
        committed = first - 1
        for number in range(first, rounds + 1):
            if self.account is not None:
                try:
                    self.account.check(self.server.participants(number))
                except RunError:
                    if committed < number - 1:  # keep rounds that have spent privacy
                        self._save_and_commit(number - 1)
                    raise
            record = self._run_round(number, listeners)
            checkpoint = number == rounds or number % every == 0
            if checkpoint:
                self.engine.save(number)
            self.folder.append(record)
            if checkpoint:
                self.folder.commit(number, self.server.state())
                committed = number
            try:
                listeners.finished_round(record)
            except StopTraining:
                if number == rounds:
                    break
                if not checkpoint:
                    self._save_and_commit(number)
                raise
        self.folder.discard_leftovers()

    def _run_round(self, number: int, listeners: Callbacks) -> Round:
        """Run a round; return its record."""
        collector = MeansCollector()
        on_upload = collector.add if stores_means(number, self.experiment.task.rounds) else ignore
        record = self.server.round(number, listeners.replied, on_upload)
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
            "data.name = 'private': the data are on the clients' machines; use `fedgh flower`"
        )


def _all_callbacks(experiment: Experiment, callbacks: Sequence[Callback | OnRound]) -> Callbacks:
    """Return the log, the callbacks of the configuration and those of the caller, as one."""
    named = named_callbacks(experiment.config.run.callbacks)
    return Callbacks([Log(), *named, *map(as_callback, callbacks)])


def local_engine(experiment: Experiment, folder: RunFolder, round: int, state: Payload) -> Engine:
    """Return the engine that `run.engine` names, with masks if uploads are to be masked."""
    engine = plain_engine(experiment, folder, round, state)
    if experiment.scale is None:
        return engine
    from fedgh.engines.masked import InProcess, Masked  # an extra

    settings, minimum = digest_of(experiment.fingerprint()), experiment.config.secure.min_clients

    def make_terms(round: int, asked: tuple[int, ...], download: str) -> Terms:
        return Terms("simulation", 0, round, settings, download, asked, minimum)

    simulated = InProcess(engine, make_terms)
    return Masked(simulated, make_terms, simulated.verify)


def plain_engine(experiment: Experiment, folder: RunFolder, round: int, state: Payload) -> Engine:
    """Return the engine that `run.engine` names; it keeps the clients' states in the run folder."""
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
