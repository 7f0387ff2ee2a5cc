"""Display the progress of a run in the terminal."""

from collections.abc import Iterable
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typing_extensions import override

from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.formats import human_bytes, percent
from fedgh.runs.folder import RunFolder
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment

FINISHING = "finishing"
"""Shown after the last round: the linear accuracy of many images takes a minute."""


def is_animated(console: Console) -> bool:
    """Return true for a terminal in which lines can be replaced."""
    return console.is_terminal and not console.is_dumb_terminal


class Bars(Progress):
    """Progress bars with something else below them."""

    below: RenderableType | None = None

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below is not None:
            yield self.below


class Notices(Callback):
    """A callback that prints the failures and rejected uploads of a run."""

    def __init__(self, console: Console, prefix: str = "") -> None:
        self.console = console
        self._prefix = prefix
        self._reported: set[int] = set()
        self._errors: set[str] = set()  # of the present round
        self._same_error = 0  # clients of the present round whose error was printed already

    def note(self, text: str, style: str | None = "yellow") -> None:
        """Print a line about the run."""
        self.console.print(
            f"{self._prefix}{text}", style=style, markup=False, highlight=False, soft_wrap=True
        )

    def replied(self, reply: Reply) -> None:
        """Print the error of a client that failed, unless another one in the round had the same."""
        if reply.error in self._errors:
            self._same_error += 1
        elif reply.error:
            self._errors.add(reply.error)
            self.note(f"round {reply.round}: client {reply.client_id} failed: {reply.error}")

    def finished_round(self, record: Round) -> None:
        """Print rejected uploads, a discarded update and excluded clients."""
        number = f"round {record.round}"
        if self._same_error:
            clients = "client" if self._same_error == 1 else "clients"
            self.note(f"{number}: {self._same_error} more {clients} failed for the same reasons")
        self._errors, self._same_error = set(), 0
        for rejected in record.rejected:
            self.note(f"{number}: upload of client {rejected.client} rejected: {rejected.reason}")
        if record.discarded is not None:
            self.note(f"{number} is discarded: {record.discarded}")
        for client in sorted({*record.excluded} - {*record.forgotten} - self._reported):
            text = "is excluded: too many of its uploads were rejected"
            self.note(f"{number}: client {client} {text}")
        self._reported |= set(record.excluded)


class Live(Notices):
    """A callback that shows a progress bar in a terminal, and one line per round elsewhere."""

    def __init__(self, console: Console, *, kept: bool = True) -> None:
        super().__init__(console)
        self._kept = kept  # whether the run folder remains after the run, so that its path is shown
        self._animated = is_animated(console)
        self._bar = Bars(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self._animated,
        )
        self._rounds = self._clients = TaskID(0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show_below(self, content: RenderableType) -> None:
        """Show something below the bars, where they are animated."""
        self._bar.below = content

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Print the method, the data, the clients, the rounds and the run folder."""
        config = experiment.config
        own = config.data.name in ("private", "own")
        kinds = "their own" if own else len(set(config.model.extractors))
        where = f" -> {run.path}" if self._kept else ""
        self.console.print(
            f"{config.method.name} on {experiment.source.name}: "
            f"{config.federation.clients} clients, {kinds} networks, "
            f"{config.federation.rounds} rounds, seed {config.federation.seed}{where}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        if done:
            self.console.print(f"rounds 1 to {len(done)} are already done")
        total = config.federation.rounds
        self._rounds = self._bar.add_task("rounds", total=total, completed=len(done), note="")
        # The first evaluation includes all clients; later rounds only have their participants.
        first = config.federation.clients
        if config.run.evaluate == "trained":
            first = max(1, round(first * config.federation.participation))
        self._clients = self._bar.add_task("clients", total=first, note="")

    def warned(self, text: str) -> None:
        """Print the warning."""
        self.note(text)

    def replied(self, reply: Reply) -> None:
        """Advance the bar by one client; print its error if it failed."""
        self._bar.update(self._clients, advance=1)
        super().replied(reply)

    def finished_round(self, record: Round) -> None:
        """Advance the bar by one round; print rejected uploads and excluded clients."""
        note = f"accuracy {percent(record.accuracy)}, {human_bytes(record.bytes_total)} sent"
        self._bar.update(self._rounds, completed=record.round, note=note)
        self._bar.update(self._clients, completed=0, total=len(record.participants))
        super().finished_round(record)
        if not self._animated:
            self.console.print(f"round {record.round}: {note}")
        if record.round == self._bar.tasks[self._rounds].total:
            self._bar.add_task("summary", total=None, note=FINISHING)
