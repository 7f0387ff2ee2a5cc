"""Functions shared by commands: settings from options, Ctrl-C, the result of a run."""

import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedgh.choices import EngineName, ExportFormat
from fedgh.errors import ConfigError

if TYPE_CHECKING:
    from fedgh.runs.folder import RunFolder
    from fedgh.tables import Sheet
    from fedgh.trained.clients import TrainedClient
    from fedgh.trained.export import ExportResult

MAX_EXPERIMENT = 2**20
"""Size in bytes up to which the file of an experiment is searched for its engine."""


def overrides_of(
    set_: list[str] | None,
    engine: EngineName | None,
    workers: int | None,
    rounds: int | None = None,
) -> list[str]:
    """Return the overrides of an experiment for these options."""
    engine_overrides = [f"run.{key}={value}" for key, value in engine_settings(engine, workers)]
    return [*(set_ or []), *engine_overrides, *([f"federation.rounds={rounds}"] if rounds else [])]


def engine_settings(engine: EngineName | None, workers: int | None) -> list[tuple[str, Any]]:
    """Return the engine settings that are not None."""
    settings = [("engine", engine), ("workers", workers)]
    return [(key, value) for key, value in settings if value is not None]


def start_workers_early(file: Path, set_: list[str] | None, engine: EngineName | None) -> None:
    """Start the helper process of workers, unless the run uses another engine.

    If the options or the experiment's file name another engine, do nothing.
    """
    from fedgh.engines.forkserver import start_early

    chosen = [text.partition("=")[2] for text in set_ or [] if text.startswith("run.engine=")]
    if (engine or (chosen or [_engine_in(file)])[-1]) == "workers":
        with suppress(OSError):  # if it cannot start now, the workers report why
            start_early()


def _engine_in(file: Path) -> str:
    """Return the engine that a configuration names, or the default one if it cannot be read."""
    from fedgh.files import read_bytes

    with suppress(OSError, ValueError, RecursionError, AttributeError):
        text = read_bytes(file, MAX_EXPERIMENT).decode()
        return str(tomllib.loads(text).get("run", {}).get("engine", "workers"))
    return "workers"


def whole_numbers(text: str) -> list[int]:
    """Return the seeds in a text such as "0,1,2"; raise ConfigError if it has others."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--seeds {text}: expected whole numbers, e.g. 0,1,2") from None


def free_folder(wanted: Path) -> Path:
    """Create and return the folder `wanted`, with -2, -3, ... appended if it exists.

    It is created here so that two processes never get the same folder.
    """
    from fedgh.files import make_folder

    make_folder(wanted.parent)
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


@contextmanager
def resumable(run: Path) -> Iterator[None]:
    """On Ctrl-C, print how to resume the run, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        if (run / "config.toml").exists():
            print(f"\nstopped; resume with: fedgh resume {run}", file=sys.stderr)
        sys.exit(130)


@contextmanager
def resumable_sweep() -> Iterator[None]:
    """On Ctrl-C in a sweep, print how to resume it, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped; the same command resumes here", file=sys.stderr)
        sys.exit(130)


@contextmanager
def watch_runs(console: Console, *, search: bool = False) -> Iterator[Callable[[str], Any]]:
    """Yield a function that announces a run of a sweep and shows its progress."""
    from fedgh.training.sweep_progress import SweepProgress

    with SweepProgress(console, search=search) as progress:
        yield progress.watch


def print_missing(console: Console, missing: dict[str, str]) -> None:
    """Print the runs without a result with the reasons; a reason that several share once."""
    from fedgh.formats import notes_of
    from fedgh.report.terminal import say

    for line in notes_of(missing.items()):
        say(console, line)


def show_result(console: Console, run: "RunFolder") -> None:
    """Print the result of a finished run, and write its report."""
    from fedgh.report.terminal import closing_lines, result, say
    from fedgh.report.write import report_after

    if not run.finished:
        say(console, f"a callback has stopped the run; resume with: fedgh resume {run.path}")
        return
    console.print(result(run))
    say(console, closing_lines(run))
    with console.status("writing the report"):
        line = report_after(run)
    say(console, line)


def check_may_replace(path: Path, ending: str) -> None:
    """Raise ConfigError if a file exists that is of another kind, such as a key."""
    if path.exists() and path.suffix != ending:
        raise ConfigError(
            f"{path} exists and its name does not end in {ending}; choose another file, so that "
            "nothing is lost"
        )


def show_predictions(console: Console, table: "Sheet", csv: Path | None) -> None:
    """Print predictions, and write all of them to the file `csv` if it is given."""
    from fedgh.files import write_atomic
    from fedgh.report.terminal import MAX_ROWS, print_whole, say, sheet

    if csv is not None:
        check_may_replace(csv, ".csv")
        write_atomic(csv, table.csv().encode())
    print_whole(console, sheet(replace(table, rows=table.rows[:MAX_ROWS])))
    if len(table.rows) > MAX_ROWS:
        say(console, f"{len(table.rows) - MAX_ROWS} more rows are not shown; --csv FILE writes all")
    say(console, table.note)


def export_into(
    folder: Path, trained: "TrainedClient", format_name: ExportFormat, out: Path | None
) -> "ExportResult":
    """Write a model to the file `out`, by default to `export/` in a folder."""
    from fedgh.files import check_no_link
    from fedgh.trained.export import FORMATS

    if out is None:
        check_no_link(folder / "export")
    ending = FORMATS[format_name].ending
    if out is not None:
        check_may_replace(out, ending)
    name = f"client-{trained.number}{ending}"
    return trained.export(out or folder / "export" / name, format_name)


def show_export(console: Console, done: "ExportResult", *, without_data: str) -> None:
    """Print the file of an export and its difference; `without_data`: why no sample was used."""
    from fedgh.formats import human_bytes
    from fedgh.report.terminal import say

    inputs = "of its test samples" if done.own else f"random inputs ({without_data})"
    say(
        console,
        f"written    {done.path} ({human_bytes(done.path.stat().st_size)})\n"
        f"checked    on {done.samples} {inputs}: logits differ by at most {done.difference:.1e} of "
        "the largest",
    )
