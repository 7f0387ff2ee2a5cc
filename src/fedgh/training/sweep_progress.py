"""Display the progress of the runs of a sweep in the terminal, one line for each."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.errors import RunError
from fedgh.formats import human_bytes, percent
from fedgh.runs.folder import RunFolder
from fedgh.training import progress
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment
from fedgh.training.progress import Bars, Notices, is_animated

SECONDS_BETWEEN_LINES = 10.0
"""The least time between two lines about the rounds of a run, where there is no terminal."""


class SweepProgress:
    """The display of a sweep: a bar for each run that is under way, and a line for each finished.

    Where there is no terminal, a run has a line at its start, at its end, and some in between. The
    progress of a search shows accuracies on the validation split, as nothing may be chosen on test
    data.
    """

    def __init__(self, console: Console, *, search: bool = False) -> None:
        self.console = console
        self.search = search
        self.bars = Bars(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[rounds]}", justify="right"),
            TextColumn("{task.fields[accuracy]}", justify="right"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
            transient=True,
            disable=not is_animated(console),
        )
        self._said: set[str] = set()

    def __enter__(self) -> "SweepProgress":
        self._show_below("preparing the runs")
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    @contextmanager
    def watch(self, line: str) -> Iterator[Callback]:
        """Announce a run, and yield a callback that shows its progress.

        `line` is the name of the run and, after a semicolon, an estimate of the remaining time.
        """
        name, _, remaining = line.partition("; ")
        self._show_below(remaining)
        if self.bars.disable:
            self.say(line)
        task = self.bars.add_task(name, total=None, rounds="", accuracy="")
        try:
            yield _RunLine(self, name, task)
        except RunError as error:
            self.say(f"{name}: no result: {error}", style="yellow")
            raise
        finally:
            self.bars.remove_task(task)

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line above the bars."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _show_below(self, text: str) -> None:
        self.bars.below = Text(text, style="dim") if text else None

    def say_once(self, text: str, style: str | None = None) -> None:
        """Print a line, unless another run has printed it."""
        if text not in self._said:
            self._said.add(text)
            self.say(text, style)


class _RunLine(Notices):
    """The callback of one run."""

    def __init__(self, sweep: SweepProgress, name: str, task: TaskID) -> None:
        super().__init__(sweep.console, f"{name}: ")
        self._sweep = sweep
        self._name = name
        self._task = task
        self._path = ""
        self._total = self._clients = 1
        self._sent = 0
        self._accuracy: float | None = None
        self._begun = self._last_line = time.monotonic()

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Say what this and the following runs train, and set the length of the bar."""
        config = experiment.config
        self._path, self._total = str(run.path), config.federation.rounds
        self._sweep.say_once(
            f"{experiment.source.name}: {config.federation.clients} clients, "
            f"{len(set(config.model.extractors))} networks, {self._total} rounds "
            f"-> {run.path.parent}"
        )
        share = 1.0 if config.run.evaluate == "all" else config.federation.participation
        self._clients = max(1, round(config.federation.clients * share))
        self._sweep.bars.update(self._task, total=self._total, rounds=f"0/{self._total}")
        for record in done[-1:]:
            self._show(record)

    def warned(self, text: str) -> None:
        """Print the warning, unless another run has the same one."""
        general = text.replace(self._path, "a run") if self._path else text
        self._sweep.say_once(f"{general} (printed once for all runs)", style="yellow")

    def replied(self, reply: Reply) -> None:
        """Advance the bar by the share of one client in a round."""
        self._sweep.bars.update(self._task, advance=1 / self._clients)
        super().replied(reply)

    def finished_round(self, record: Round) -> None:
        """Advance the bar to the end of the round; after the last one, print the result."""
        super().finished_round(record)
        self._clients = max(1, len(record.participants))
        self._show(record)
        now = time.monotonic()
        if record.round == self._total:
            seconds = timedelta(seconds=round(now - self._begun))
            sent = human_bytes(self._sent)
            self.note(f"{self._scored()}, {sent} sent, {seconds}", style=None)
        elif self._sweep.bars.disable and now > self._last_line + SECONDS_BETWEEN_LINES:
            text = f"round {record.round} of {self._total}, {self._scored()}"
            self.note(text, style=None)
            self._last_line = now

    def _scored(self) -> str:
        """Return the last accuracy as text."""
        kind = "validation accuracy" if self._sweep.search else "accuracy"
        return f"{kind} {percent(self._accuracy)}"

    def _show(self, record: Round) -> None:
        self._sent = record.bytes_total
        score = record.scores.get("validation_accuracy" if self._sweep.search else "accuracy")
        if score is not None:
            self._accuracy = score
        finished = record.round == self._total
        self._sweep.bars.update(
            self._task,
            completed=record.round,
            rounds=progress.FINISHING if finished else f"{record.round}/{self._total}",
            accuracy=percent(self._accuracy),
        )
