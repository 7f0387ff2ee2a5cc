"""Run the experiments of a sweep: one after another in this process, or several at the same time.

Each of several has a process of its own, with its share of the cores, or one GPU. The data are in
shared memory, one copy for all. The process calls the callback of its run, which stays in the
process of the sweep, through a pipe, and waits until the call returns. It ends together with the
process of the sweep, even after kill -9, so that no run keeps its folder locked unseen.
"""

import pickle
import signal
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path

from typing_extensions import override

from fedgh.config import RunSection
from fedgh.core.records import Round
from fedgh.core.server import Engine
from fedgh.core.types import Payload, Reply
from fedgh.engines.device import card_of, find_device, use_card
from fedgh.engines.forkserver import no_interrupts, start_in_fork
from fedgh.engines.workers import available_cores, become_worker, share, worker_context
from fedgh.errors import ConfigError, FedghError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.training.callbacks import Callback, Callbacks, Log, StopTraining
from fedgh.training.experiment import Experiment
from fedgh.training.loop import MakeEngine, local_engine, run_or_resume
from fedgh.training.same import check_settings

SECONDS_TO_END = 10.0
"""Time in which a process that is told to end may end its workers; then it is killed."""

ENDED = "ended"
"""The last message of a process; every other one is the name of a callback's method."""


@dataclass(frozen=True)
class Launch:
    """An experiment to run or resume in a folder, and the context that yields its callback."""

    experiment: Experiment
    folder: RunFolder
    watching: AbstractContextManager[Callback]


Ends = Generator[tuple[Launch, RunError | None], None, None]
"""Generator of the runs that have ended, each with the reason if it failed."""


def run_all(launches: Iterable[Launch], jobs: int) -> Ends:
    """Run the experiments, up to `jobs` at the same time.

    The next one is taken from `launches` only when it can start. Close the generator to end all.
    """
    return _in_turn(launches) if jobs <= 1 else _at_once(launches, jobs)


def _in_turn(launches: Iterable[Launch]) -> Ends:
    for launch in launches:
        failure = None
        try:
            with launch.watching as callback:
                _run(launch.experiment, launch.folder, callback)
        except RunError as error:
            failure = error
        yield launch, failure


def _at_once(launches: Iterable[Launch], jobs: int) -> Ends:
    upcoming = iter(launches)
    running: dict[Connection, _Process] = {}
    try:
        while True:
            while len(running) < jobs and (launch := next(upcoming, None)):
                place = min({*range(jobs)} - {process.place for process in running.values()})
                with no_interrupts():  # a Ctrl-C arrives when `finally` ends this process, too
                    process = _Process(launch, place, jobs)
                    running[process.connection] = process
            if not running:
                return
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                process = running[connection]
                if not process.serve():
                    del running[connection]
                    process.close()
                    yield process.launch, process.failure
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.close()


def _run(
    experiment: Experiment,
    folder: RunFolder,
    callback: Callback,
    make_engine: MakeEngine | None = None,
) -> None:
    check_settings(folder, experiment.config)  # another process may have started it meanwhile
    run_or_resume(experiment, folder.path, [callback], make_engine=make_engine)


class _Process:
    """The process of a run, as the process of the sweep sees it."""

    def __init__(self, launch: Launch, place: int, jobs: int) -> None:
        self.launch = launch
        self.place = place  # the lowest number that no other running process has
        self.failure: RunError | None = None
        experiment, context = launch.experiment, worker_context()
        share(
            experiment.sources,
            experiment.partition,
            experiment.public,
            instead="leave out --jobs",
        )
        kind = find_device(experiment.config.run.device).type
        section = share_of_machine(experiment.config.run, jobs, kind)
        self.connection, other_end = context.Pipe()
        self._process = context.Process(
            target=_work,
            args=(
                other_end,
                experiment,
                launch.folder.path,
                section,
                card_of(place) if kind == "cuda" else None,
            ),
            name=f"fedgh-job-{place}",
        )
        with ExitStack() as stack:
            callback = stack.enter_context(launch.watching)
            self._callback = Callbacks([Log(), callback])
            try:
                self._process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ConfigError(
                    f"an object cannot be sent to another process ({error}); define it at the top "
                    "level of an importable module, or leave out --jobs"
                ) from None
            self._watching = stack.pop_all()
        other_end.close()

    def serve(self) -> bool:
        """Receive a message from the process, and answer it; return false if it was the last."""
        try:
            name, *arguments = self.connection.recv()
        except (EOFError, OSError):
            name, arguments = ENDED, [self._died()]
        if name == ENDED:
            (error,) = arguments
            if error is not None and not isinstance(error, RunError):
                raise error
            self.failure = error
            return False
        if name == "started":
            arguments = [self.launch.experiment, self.launch.folder, *arguments]
        answer = None
        try:
            getattr(self._callback, name)(*arguments)
        except (StopTraining, FedghError) as error:
            answer = error
        with suppress(OSError):  # the process has died, as the next message will tell
            self.connection.send(answer)
        return True

    def terminate(self) -> None:
        """Tell the process to end; its run can be resumed."""
        self._process.terminate()

    def close(self) -> None:
        """Wait until the process has ended, and release everything."""
        self._process.join(SECONDS_TO_END)
        self._process.kill()
        self._process.join()
        self.connection.close()
        self._callback.close()
        with suppress(RunError), self._watching:
            if self.failure is not None:
                raise self.failure

    def _died(self) -> RunError:
        self._process.join()
        return RunError(
            f"the process of this run ended unexpectedly (exit code {self._process.exitcode}; -9 "
            "often means too little memory). The last completed round is safe: the same command "
            "resumes it, perhaps with fewer --jobs"
        )


def share_of_machine(section: RunSection, jobs: int, device: str) -> RunSection:
    """Return the settings with which one of `jobs` runs uses its share of this machine.

    `device` is the kind of device. A number of workers that the user has chosen remains. On a GPU
    every run has one worker, and so one GPU. One worker needs no process beside that of the run.
    """
    workers = section.workers or (max(1, available_cores() // jobs) if device == "cpu" else 1)
    engine = "serial" if workers == 1 else section.engine
    changes = {"engine": engine, "workers": workers, "memory": section.memory / jobs}
    return section.model_copy(update=changes)


def _work(
    connection: Connection,
    experiment: Experiment,
    path: Path,
    section: RunSection,
    card: str | None,
) -> None:
    """Run an experiment with the engine of `section`; the main function of a process."""
    if section.engine == "workers":
        start_in_fork()
    become_worker()
    _end_with_sweep()
    if card is not None:
        use_card(card)
    config = experiment.config.model_copy(update={"run": section})
    limited = replace(experiment, config=config)

    def make_engine(_: Experiment, folder: RunFolder, round: int, state: Payload) -> Engine:
        return local_engine(limited, folder, round, state)

    failure = None
    try:
        _run(experiment, RunFolder(path), _Caller(connection), make_engine)
    except FedghError as error:
        failure = error
    connection.send((ENDED, failure))


class _Caller(Callback):
    """A callback that calls the one of the run in the process of the sweep."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @override
    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        self._call("started", done)

    @override
    def warned(self, text: str) -> None:
        self._call("warned", text)

    @override
    def replied(self, reply: Reply) -> None:
        self._call("replied", replace(reply, up=None))

    @override
    def finished_round(self, record: Round) -> None:
        self._call("finished_round", record)

    def _call(self, name: str, argument: object) -> None:
        self._connection.send((name, argument))
        error = self._connection.recv()
        if error is not None:
            raise error


def _end_with_sweep() -> None:
    """End this process, its engine first, when it is told to or the process of the sweep ended."""
    main_thread = threading.main_thread().ident
    sweep = parent_process()
    assert main_thread is not None
    assert sweep is not None

    def follow() -> None:
        sweep.join()
        signal.pthread_kill(main_thread, signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=follow, daemon=True).start()
