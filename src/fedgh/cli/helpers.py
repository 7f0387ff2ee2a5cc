"""What several commands do: settings from options, a word after Ctrl-C, the result of a run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedgh.choices import EngineName
from fedgh.errors import ConfigError

if TYPE_CHECKING:
    from fedgh.runs.folder import RunFolder


def overrides_of(
    set_: list[str] | None,
    engine: EngineName | None,
    workers: int | None,
    rounds: int | None = None,
) -> list[str]:
    """Return the changes of an experiment that the options ask for."""
    how = [f"run.{key}={value}" for key, value in engine_settings(engine, workers)]
    return [*(set_ or []), *how, *([f"federation.rounds={rounds}"] if rounds else [])]


def engine_settings(engine: EngineName | None, workers: int | None) -> list[tuple[str, Any]]:
    """Return the settings of the engine that were given."""
    chosen = [("engine", engine), ("workers", workers)]
    return [(key, value) for key, value in chosen if value is not None]


def whole_numbers(text: str) -> list[int]:
    """Parse the seeds: "0,1,2"."""
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ConfigError(f"--seeds {text}: expected whole numbers, e.g. 0,1,2") from None


def free_folder(wanted: Path) -> Path:
    """Make runs/demo, or runs/demo-2 and so on when that is taken.

    Made at once, so that of two processes each gets its own.
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
    """Turn Ctrl-C into a word on how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if (run / "config.toml").exists():
            print(f"\nstopped; go on with: fedgh resume {run}", file=sys.stderr)
        sys.exit(130)


@contextmanager
def repeatable() -> Iterator[None]:
    """Turn Ctrl-C in a sweep into a word on how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def watch_runs(console: Console) -> Callable[[str], Any]:
    """Return a function that announces a run and shows its progress."""
    from fedgh.report.terminal import say
    from fedgh.training.progress import Live

    def watch(line: str) -> Live:
        say(console, line)
        return Live(console)

    return watch


def say_missing(console: Console, missing: dict[str, str]) -> None:
    """Print which runs there are not, and why."""
    from fedgh.report.terminal import say

    for label, reason in missing.items():
        say(console, f"{label}: {reason}")


def show_result(console: Console, run: "RunFolder") -> None:
    """Print the result of a finished run, and write its report."""
    from fedgh.report.terminal import closing_lines, result, say
    from fedgh.report.write import report_after

    if not run.finished:
        say(console, f"a callback has stopped the run; go on with: fedgh resume {run.path}")
        return
    console.print(result(run))
    say(console, closing_lines(run))
    with console.status("writing the report"):
        line = report_after(run)
    say(console, line)
