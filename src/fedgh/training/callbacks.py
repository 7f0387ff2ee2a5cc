"""Callbacks: what is told of a run while it goes on, and the log."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.errors import ConfigError, FedghError, RunError, one_line
from fedgh.formats import human_bytes, percent
from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment

OnRound = Callable[[Round], object]
"""Called with the record of every finished round; if it returns True, that was the last.

When a run goes on that was stopped before, its last round is shown once more."""

logger = logging.getLogger(__name__)


class StopTraining(Exception):  # noqa: N818
    """Raised by a callback: no more rounds; those that it was told of are kept."""


class Callback:
    """Base class: override the hooks that you need."""

    @property
    def name(self) -> str:
        """How messages call it."""
        return type(self).__name__

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Called when a run begins, or goes on after the rounds in `done`."""

    def warned(self, text: str) -> None:
        """Called with something that the user should know."""

    def replied(self, reply: Reply) -> None:
        """Called when a client has finished its job."""

    def finished_round(self, record: Round) -> None:
        """Called when a round is complete; raise `StopTraining` to make it the last."""

    def close(self) -> None:
        """Called once when training ends, also by an error or Ctrl-C."""


class Callbacks(Callback):
    """Several callbacks as one, told in turn; RunError names one that fails."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._all = tuple(callbacks)

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Tell all."""
        for callback in self._all:
            with _naming(callback):
                callback.started(experiment, run, done)

    def warned(self, text: str) -> None:
        """Tell all."""
        for callback in self._all:
            with _naming(callback):
                callback.warned(text)

    def replied(self, reply: Reply) -> None:
        """Tell all."""
        for callback in self._all:
            with _naming(callback):
                callback.replied(reply)

    def finished_round(self, record: Round) -> None:
        """Tell all, then stop if one of them wants to."""
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
        """Close all, the last first, whatever one of them raises."""
        with ExitStack() as stack:
            for callback in self._all:
                stack.callback(_naming(callback)(callback.close))


@contextmanager
def _naming(callback: Callback) -> Iterator[None]:
    """Say which callback has failed: it may be anybody's code."""
    try:
        yield
    except (StopTraining, FedghError):
        raise
    except Exception as error:
        raise RunError(f"the callback {callback.name} has failed: {one_line(error)}") from error


class EachRound(Callback):
    """A function as a callback."""

    def __init__(self, function: OnRound) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self._function, "__qualname__", "") or super().name

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Show the last round again: a run that the function has stopped does not go on."""
        if done:
            self.finished_round(done[-1])

    def finished_round(self, record: Round) -> None:
        """Call the function."""
        if self._function(record) is True:
            raise StopTraining


class Log(Callback):
    """Write what happens to the logger `fedgh.training.callbacks`."""

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Log what runs where."""
        task, method = experiment.task, experiment.config.method.name
        text = "%s: %d clients, rounds %d to %d, %s"
        logger.info(text, method, task.num_clients, len(done) + 1, task.rounds, run.path)

    def warned(self, text: str) -> None:
        """Log it."""
        logger.warning(text)

    def replied(self, reply: Reply) -> None:
        """Log a failure."""
        if reply.error:
            text = "round %d: client %d failed: %s"
            logger.warning(text, reply.round, reply.client_id, reply.error)

    def finished_round(self, record: Round) -> None:
        """Log the result of the round."""
        text = "round %d is done: accuracy %s, %s sent"
        sent = human_bytes(record.bytes_total)
        logger.info(text, record.round, percent(record.accuracy), sent)
        for rejected in record.rejected:
            text = "round %d: the upload of client %d is rejected: %s"
            logger.warning(text, record.round, rejected.client, rejected.reason)
        if record.discarded is not None:
            logger.warning("round %d is discarded: %s", record.round, record.discarded)


def as_callback(given: object) -> Callback:
    """Return a callback, a class of callbacks or a function of a record as a callback."""
    if isinstance(given, type) and issubclass(given, Callback):
        try:
            return given()
        except FedghError:
            raise
        except Exception as error:
            text = f"{given.__name__}() has failed: {one_line(error)}"
            raise ConfigError(f"{text}; a callback is made without arguments") from error
    if isinstance(given, Callback):
        return given
    if callable(given):
        return EachRound(given)
    raise ConfigError(f"expected a callback or a function of a round's record, got {given!r}")
