"""Functions shared by commands: settings from options, Ctrl-C, the result of a run."""

import sys
import tomllib
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
    """Start the helper process of workers before torch is imported here, which takes as long.

    If the options or the experiment's file name another engine, do nothing.
    """
    from fedgh.engines.forkserver import start_early

    chosen = [text.partition("=")[2] for text in set_ or [] if text.startswith("run.engine=")]
    if (engine or (chosen or [_engine_in(file)])[-1]) == "workers":
        with suppress(OSError):  # if it cannot start now, the workers report why
            start_early(also=["fedgh.cli"])


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


def watch_runs(console: Console) -> Callable[[str], Any]:
    """Return a function that announces a run and shows its progress."""
    from fedgh.report.terminal import say
    from fedgh.training.progress import Live

    def watch(line: str) -> Live:
        say(console, line)
        return Live(console)

    return watch


def print_missing(console: Console, missing: dict[str, str]) -> None:
    """Print the runs without a result, each with the reason."""
    from fedgh.report.terminal import say

    for label, reason in missing.items():
        say(console, f"{label}: {reason}")


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
