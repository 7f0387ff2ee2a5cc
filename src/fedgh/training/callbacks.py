"""Callbacks, which receive the events of a run, and the callback that logs them."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from typing_extensions import override

from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.errors import ConfigError, FedghError, RunError, one_line
from fedgh.formats import human_bytes, percent
from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment

OnRound = Callable[[Round], object]
"""Function that is called with the record of every finished round; it returns True to stop the run.

When a stopped run is resumed, the function is first called with the last recorded round again."""

logger = logging.getLogger(__name__)


class StopTraining(Exception):  # noqa: N818
    """Raised by a callback to stop the run after the current round, which is kept."""


class Callback:
    """The base class of callbacks. Every hook does nothing; override those that you need."""

    @property
    def name(self) -> str:
        """The name of the callback in messages."""
        return type(self).__name__

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Called when a run starts, or resumes after the rounds in `done`."""

    def warned(self, text: str) -> None:
        """Called with a warning for the user."""

    def replied(self, reply: Reply) -> None:
        """Called when a client has finished its job."""

    def finished_round(self, record: Round) -> None:
        """Called when a round is complete; raise `StopTraining` to make it the last."""

    def close(self) -> None:
        """Called once when training ends, also by an error or Ctrl-C."""


class Callbacks(Callback):
    """Several callbacks as one, called in order. Raise RunError with the name of one that fails."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._all = tuple(callbacks)

    @override
    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        for callback in self._all:
            with _naming(callback):
                callback.started(experiment, run, done)

    @override
    def warned(self, text: str) -> None:
        for callback in self._all:
            with _naming(callback):
                callback.warned(text)

    @override
    def replied(self, reply: Reply) -> None:
        for callback in self._all:
            with _naming(callback):
                callback.replied(reply)

    def finished_round(self, record: Round) -> None:
        """Call all callbacks; then raise StopTraining if one of them did."""
        stop = False
        for callback in self._all:
            try:
                with _naming(callback):
                    callback.finished_round(record)
            except StopTraining:
                stop = True
        if stop:
            raise StopTraining

    def close(self) -> None:
        """Close all callbacks in reverse order, also those after one that raises."""
        with ExitStack() as stack:
            for callback in self._all:
                stack.callback(_naming(callback)(callback.close))


@contextmanager
def _naming(callback: Callback) -> Iterator[None]:
    """Raise RunError with the name of the callback for any exception of a user's code."""
    try:
        yield
    except (StopTraining, FedghError):
        raise
    except Exception as error:
        raise RunError(f"the callback {callback.name} failed: {one_line(error)}") from error


class FunctionCallback(Callback):
    """A callback that calls a function with the record of every round."""

    def __init__(self, function: OnRound) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self._function, "__qualname__", "") or super().name

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Call the function with the last round again: a run that it stopped stays stopped."""
        if done:
            self.finished_round(done[-1])

    def finished_round(self, record: Round) -> None:
        """Call the function."""
        if self._function(record) is True:
            raise StopTraining


class Log(Callback):
    """A callback that writes the events of a run to the logger `fedgh.training.callbacks`."""

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Log the method, the number of clients, the rounds to run and the run folder."""
        task, method = experiment.task, experiment.config.method.name
        text = "%s: %d clients, rounds %d to %d, %s"
        logger.info(text, method, task.num_clients, len(done) + 1, task.rounds, run.path)

    def warned(self, text: str) -> None:
        """Log the warning."""
        logger.warning(text)

    def replied(self, reply: Reply) -> None:
        """Log the error of a client that failed."""
        if reply.error:
            text = "round %d: client %d failed: %s"
            logger.warning(text, reply.round, reply.client_id, reply.error)

    def finished_round(self, record: Round) -> None:
        """Log the result of the round, rejected uploads and a discarded update."""
        text = "round %d is done: accuracy %s, %s sent"
        sent = human_bytes(record.bytes_total)
        logger.info(text, record.round, percent(record.accuracy), sent)
        for rejected in record.rejected:
            text = "round %d: the upload of client %d is rejected: %s"
            logger.warning(text, record.round, rejected.client, rejected.reason)
        if record.discarded is not None:
            logger.warning("round %d is discarded: %s", record.round, record.discarded)


def as_callback(given: object) -> Callback:
    """Return the callback of a callback, a subclass of Callback, or a function of a record.

    Raise ConfigError for any other object, and for a class that cannot be created.
    """
    if isinstance(given, type) and issubclass(given, Callback):
        try:
            return given()
        except FedghError:
            raise
        except Exception as error:
            text = f"{given.__name__}() failed: {one_line(error)}"
            raise ConfigError(f"{text}; a callback is created without arguments") from error
    if isinstance(given, Callback):
        return given
    if callable(given):
        return FunctionCallback(given)
    raise ConfigError(f"expected a callback or a function of a round's record, got {given!r}")
