"""Display the progress of a run in the terminal."""

from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.formats import human_bytes, percent
from fedgh.runs.folder import RunFolder
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment


@dataclass
class Live(Callback):
    """A callback that shows a progress bar in a terminal, and one line per round elsewhere."""

    console: Console
    kept: bool = True  # whether the run folder remains after the run, so that its path is shown
    _bar: Progress = field(init=False)
    _rounds: TaskID = field(init=False)
    _clients: TaskID = field(init=False)
    _reported: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._bar = Progress(
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

    @property
    def _animated(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def __enter__(self) -> "Live":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Print the method, the data, the clients, the rounds and the run folder."""
        config = experiment.config
        own = config.data.name in ("private", "own")
        kinds = "their own" if own else len(set(config.model.extractors))
        where = f" -> {run.path}" if self.kept else ""
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
        self.console.print(text, style="yellow", markup=False)

    def replied(self, reply: Reply) -> None:
        """Advance the bar by one client; print its error if it failed."""
        self._bar.update(self._clients, advance=1)
        if reply.error:
            self.console.print(
                f"round {reply.round}: client {reply.client_id} failed: {reply.error}",
                style="yellow",
                markup=False,
            )

    def finished_round(self, record: Round) -> None:
        """Advance the bar by one round; print rejected uploads and excluded clients."""
        note = f"accuracy {percent(record.accuracy)}, {human_bytes(record.bytes_total)} sent"
        self._bar.update(self._rounds, completed=record.round, note=note)
        self._bar.update(self._clients, completed=0, total=len(record.participants))
        for rejected in record.rejected:
            self.console.print(
                f"round {record.round}: upload of client {rejected.client} "
                f"rejected: {rejected.reason}",
                style="yellow",
                markup=False,
            )
        if record.discarded is not None:
            self.console.print(
                f"round {record.round} is discarded: {record.discarded}",
                style="yellow",
                markup=False,
            )
        for client in sorted({*record.excluded} - {*record.forgotten} - self._reported):
            self.console.print(
                f"round {record.round}: client {client} is excluded: too many of its uploads "
                "were rejected",
                style="yellow",
            )
        self._reported |= set(record.excluded)
        if not self._animated:
            self.console.print(f"round {record.round}: {note}")
