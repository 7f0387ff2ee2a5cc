"""Tables and texts about runs in the terminal."""

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedgh.core.metrics import SPREADS
from fedgh.core.records import ClientInfo, PrivacySpending, Summary
from fedgh.errors import printable
from fedgh.formats import few, human_bytes, percent
from fedgh.runs.folder import RunFolder
from fedgh.studies.statistics import Row
from fedgh.tables import Sheet
from fedgh.training.experiment import Experiment

MAX_CLIENTS = 40
"""Rows of a table of clients; more would not be readable in a terminal."""

MAX_ROWS = 200
"""Rows of any other table that may be long."""

SHADES = " ░▒▓█"


def say(console: Console, text: str) -> None:
    """Print text unchanged: without colours, line breaks or interpretation of markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def result(run: RunFolder) -> Table:
    """Return a table of the clients of a finished run, with the mean."""
    summary = run.summary()
    last = [record for record in run.records() if record.accuracy is not None][-1]
    columns = {"accuracy": "accuracy", "global_accuracy": "on all classes"}
    columns = {key: title for key, title in columns.items() if last.scores.get(key) is not None}
    clients = run.clients()
    table = Table(title=f"{summary.method} on {summary.data}", show_footer=True)
    table.add_column("client", "mean", justify="right")
    table.add_column("network")
    table.add_column("classes", overflow="fold")
    samples = sum(_samples(client) for client in clients) / len(clients)
    table.add_column("samples", f"{samples:.0f}" if samples else "-", justify="right")
    for key, title in columns.items():
        table.add_column(title, percent(last.scores[key]), justify="right")
    for client in clients[:MAX_CLIENTS]:
        table.add_row(
            str(client.client),
            Text(client.extractor),
            Text(few(list(client.classes))),
            str(_samples(client) or "-"),
            *(percent((last.per_client[key] or [])[client.client]) for key in columns),
        )
    if len(clients) > MAX_CLIENTS:
        table.caption = f"{len(clients) - MAX_CLIENTS} more clients are in clients.json"
    return table


def closing_lines(run: RunFolder) -> str:
    """Return the lines below the table of clients: accuracy, bytes, target, privacy, folder."""
    summary = run.summary()
    evaluated, clients = summary.evaluated_clients, summary.clients
    whose = "all clients" if evaluated == clients else f"{evaluated} of {clients} clients"
    lines = [
        f"accuracy   {percent(summary.accuracy)} after round {summary.rounds}, "
        f"mean over {whose}, each on its own test data",
        *_spread_lines(summary),
        *_global_line(run, summary),
        f"sent       {human_bytes(summary.bytes_total)} in all, "
        f"{human_bytes(summary.bytes_per_client_round or 0)} per client and round",
    ]
    if summary.paper_bytes_per_client_round is not None:
        paper_bytes = human_bytes(summary.paper_bytes_per_client_round)
        lines[-1] += f" ({paper_bytes} as the paper counts)"
    if summary.wire_bytes_total:
        wire = human_bytes(summary.wire_bytes_total)
        lines.append(f"messages   {wire}: the tensors above and the overhead of Flower's messages")
    if summary.public_bytes_per_client is not None:
        lines.append(f"public     {public_line(summary.public_bytes_per_client)}")
    if summary.target is not None:
        reached = (
            "not reached"
            if summary.bytes_to_target is None
            else f"after round {summary.rounds_to_target}, {human_bytes(summary.bytes_to_target)}"
        )
        lines.append(f"target     {percent(summary.target)} {reached}")
    if summary.privacy is not None:
        lines.append(f"privacy    {privacy_line(summary.privacy)}")
    lines.append(f"run folder {run.path}")
    return "\n".join(lines)


def _spread_lines(summary: Summary) -> list[str]:
    """Return the spread over clients and the class-balanced metrics, if they were measured."""
    lines = []
    std, p10, worst = (summary.final.get(f"accuracy_{name}") for name in SPREADS)
    if worst is not None:
        lines.append(
            f"clients    worst {percent(worst)}, 10th percentile {percent(p10)}, std {percent(std)}"
        )
    names = ("balanced_accuracy", "macro_f1", "loss")
    balanced, f1, loss = (summary.final.get(name) for name in names)
    if balanced is not None:
        with_loss = "" if loss is None else f", loss {loss:.3f}"
        lines.append(f"balanced   accuracy {percent(balanced)}, macro-F1 {percent(f1)}{with_loss}")
    return lines


def _global_line(run: RunFolder, summary: Summary) -> list[str]:
    """Return the line about the accuracy on all classes, if it was measured."""
    score = summary.final.get("global_accuracy")
    if score is None:
        return []
    measured = run.records()[-1].per_client.get("global_accuracy") or []
    evaluated, clients = sum(score is not None for score in measured), summary.clients
    whose = "all clients" if evaluated == clients else f"the {evaluated} clients measured"
    return [
        f"global     {percent(score)}, mean over {whose}, each on test samples of all clients, the "
        "same number per class"
    ]


PROTECTED = {
    "sample": "one sample, the extractor taken as given",
    "client": "all data of a client",
}
"""The data that ε protects, by the value of privacy.protects."""


def privacy_line(privacy: PrivacySpending) -> str:
    """Return a line about the ε that a run has spent."""
    return (
        f"ε = {privacy.epsilon:.2f} at δ = {privacy.delta:g}, for "
        f"{PROTECTED[privacy.protects]}; the highest of all clients, over all rounds"
    )


def public_line(size: int) -> str:
    """Return a line about the size of the public data that every client must have."""
    return f"data, once: {human_bytes(size)} per client, in addition to the bytes of the rounds"


def comparison(table: list[Row], missing: dict[str, str], target: float | None) -> Table:
    """Return a table of methods; below each mean is its standard deviation over seeds."""
    to_target = "" if target is None else f"to {percent(target)}"
    out = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    titles = ["method", "accuracy %", "diff", "p", "p seeds", "bal. %", "worst %", "global %"]
    titles += [to_target, "bytes", "B/c/r"]
    for title in (*titles, "paper's", "s"):
        out.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
    for row in table:
        rounds = [row.rounds_to_target, row.rounds_to_target_std]
        sent = [row.bytes_to_target, row.bytes_to_target_std]
        reached = f"\nin {row.reached} of {row.seeds}" if 0 < row.reached < row.seeds else ""
        out.add_row(
            Text(row.label),
            _spread([row.accuracy, row.accuracy_std], _percentage),
            "" if row.difference is None else f"{100 * row.difference:+.2f}",
            *("" if p is None else f"{p:.3f}" for p in (row.p_holm, row.p_seeds_holm)),
            _spread([row.final["balanced_accuracy"], None], _percentage),
            _spread([row.final["accuracy_worst"], None], _percentage),
            _spread([row.global_accuracy, row.global_accuracy_std], _percentage),
            _spread(rounds, "{:.3g} r".format) + reached if to_target else "",
            _spread(sent, human_bytes) if to_target else "",
            _spread([row.bytes_per_client_round, row.bytes_per_client_round_std], human_bytes),
            _spread([row.paper_bytes_per_client_round, None], human_bytes),
            _spread([row.seconds, row.seconds_std], "{:.0f}".format),
        )
    for label in missing:
        out.add_row(Text(label), "-", style="dim")
    return out


def search(table: list[Row]) -> Table:
    """Return a table of the points of a grid, with their accuracy on the validation split."""
    out = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    out.add_column("settings", no_wrap=True)
    for title in ("validation accuracy %", "B/c/r", "s"):
        out.add_column(title, justify="right", no_wrap=True)
    for row in table:
        accuracy = [row.validation_accuracy, row.validation_accuracy_std]
        out.add_row(
            Text(row.label),
            _spread(accuracy, _percentage),
            _spread([row.bytes_per_client_round, None], human_bytes),
            _spread([row.seconds, None], "{:.0f}".format),
        )
    return out


def sheet(table: Sheet) -> Table:
    """Return a sheet as a table for the terminal."""
    title = escape(printable(table.title))
    out = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        out.add_column(Text(column.title), no_wrap=True)
    for row in table.rows:
        shown = zip(table.columns, row, strict=True)
        out.add_row(*(Text(printable(column.show(cell))) for column, cell in shown))
    return out


def print_whole(console: Console, table: Table) -> None:
    """Print a table without truncation, wider than the console if necessary."""
    options = console.options.update(max_width=1000)
    console.width = max(console.width, console.measure(table, options=options).maximum)
    console.print(table)


def partition_picture(experiment: Experiment, console: Console) -> None:
    """Print a map of samples: a row for each client, a column for each class.

    The more samples, the darker the cell. Numbers are shown if they fit. If the names of the
    classes do not fit, the columns are numbered, and the names follow.
    """
    names = experiment.source.class_names
    counts, clients = experiment.counts(), experiment.clients()
    max_count = int(counts.max())
    digits = len(str(max_count))
    columns = max(10, (console.width - 24) // 10 * 10)
    # A cell has a gap, a number (or a title above it) and a shade, or only a shade.
    titles = [*map(str, range(len(names)))]
    widths = [max(digits, *map(cell_len, names)) + 2, digits + 2, len(titles[-1]) + 2, 1]
    kind = next(k for k, width in enumerate(widths) if width * len(names) <= columns or width == 1)
    cell, named, numbers = widths[kind], kind == 0, kind < 2
    step = columns if cell == 1 else len(names)
    for first in range(0, len(names), step):
        shown = range(first, min(first + step, len(names)))
        part = (names if named else titles)[shown.start : shown.stop]
        console.print(Text(f"{'classes':<16}{_heading(part, cell)}"))
        for client, row in list(zip(clients, counts.tolist(), strict=True))[:MAX_CLIENTS]:
            line = Text(f"{client.client:>4} {client.extractor[-10:]:<10} ")
            for count in row[shown.start : shown.stop]:
                shade = SHADES[-(-count * (len(SHADES) - 1) // max_count)]
                number = (count or "") if numbers else ""
                line.append(f"{number:>{cell - 1}}{shade}", style="cyan")
            line.append(f"{sum(row):>8}")
            console.print(line)
    if not named and [*names] != titles:
        numbered = [Text(f"{label} {name}") for label, name in zip(titles, names, strict=True)]
        console.print(Columns(numbered, padding=(0, 2)))
    if len(clients) > MAX_CLIENTS:
        console.print(f"... and {len(clients) - MAX_CLIENTS} more clients")
    if experiment.public is not None:
        console.print(f"{len(experiment.public)} more samples are public and belong to no client")
    sizes = experiment.partition.bounds.diff(dim=1).sum(0).tolist()
    held = counts.gt(0).sum(0)
    least, most = int(held.min()), int(held.max())
    console.print(
        f"{sum(sizes)} samples: {sizes[0]} train, {sizes[1]} validation, {sizes[2]} test; "
        f"{len(names)} classes, each held by {least if least == most else f'{least} to {most}'} "
        f"of {len(clients)} clients"
    )


def _heading(titles: Sequence[str], cell: int) -> str:
    """Return the titles of columns that are `cell` wide; of narrow ones, only every tenth."""
    if cell == 1:
        return "".join(f"{title:<10}" for title in titles[::10]).rstrip()
    aligned = (" " * (cell - cell_len(title)) + title for title in titles)
    return "".join(aligned) + "   total"


class DownloadBar:
    """A progress bar of a download, with the interface that pooch requires."""

    def __init__(self, console: Console, name: str) -> None:
        self._bar = Progress(
            TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console
        )
        self._task = self._bar.add_task(name, total=None)
        self.total: float = 0

    def update(self, count: int) -> None:
        """Advance the bar by `count` bytes."""
        self._bar.start()
        self._bar.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        """Set the bar back to the start."""
        self._bar.reset(self._task)

    def close(self) -> None:
        """Stop the bar."""
        self._bar.stop()


def listing(rows: dict[str, str]) -> Table:
    """Return a table of names and their descriptions."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, description in rows.items():
        table.add_row(Text(name), Text(description))
    return table


def _percentage(share: float) -> str:
    """Return 0.5 as '50.00'; the title of the column has the percent sign."""
    return f"{100 * share:.2f}"


def _spread(mean_and_std: list[float | None], show: Callable[[float], str]) -> str:
    """Return a mean with its standard deviation below it, if that is known and not 0."""
    mean, std = mean_and_std
    if mean is None:
        return "-"
    return show(mean) + (f"\n±{show(std)}" if std else "")


def _samples(client: ClientInfo) -> int:
    return client.train + client.validation + client.test
