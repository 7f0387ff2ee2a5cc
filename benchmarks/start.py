"""Time and memory of `fedgh run demo` as a new process."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.memory import peak_memory, proportional_set, tree
from fedgh.engines.forkserver import no_interrupts
from fedgh.errors import RunError

if TYPE_CHECKING:
    from benchmarks.suite import Bench

COMMAND = [sys.executable, "-m", "fedgh", "run", "demo"]
TIMES = 3
MIB = 2**20


def start_of_a_run(bench: "Bench") -> Iterator[tuple[str, float]]:
    """`fedgh run demo`: seconds until its first round begins, peak memory of all processes"""
    # The first run fills the caches of the system. Measuring memory takes time of its own, so the
    # memory is that of this run, and the seconds are those of the runs after it.
    peak = _peak(bench.folder / "start")
    runs = range(1 if bench.quick else TIMES)
    yield "start_seconds", median(_seconds(bench.folder / f"start-{run}") for run in runs)
    if peak:  # not every system reports it
        yield "start_peak_mib", peak / MIB


def _peak(out: Path) -> int:
    """Return the peak memory of a whole run, with its report, in bytes."""
    with _started(out) as process:
        try:
            peak = peak_memory(process, every=0.1)
        finally:
            process.terminate()
    if process.returncode:
        raise RunError("the run of the demo failed; its error is above")
    return peak


def _seconds(out: Path) -> float:
    """Return the seconds until a run begins its first round; the run ends after this round."""
    records = out / "rounds.jsonl"
    start = time.perf_counter()
    with _started(out) as process:
        try:
            while not (records.exists() and (text := records.read_text()).endswith("\n")):
                if process.poll() is not None:
                    raise RunError("the run of the demo failed; its error is above")
                time.sleep(0.01)
            seconds = time.perf_counter() - start
        finally:
            processes = tree(process.pid)
            process.terminate()
    _wait_until_ended(processes)
    first = json.loads(text.splitlines()[0])
    return seconds - float(first["seconds"]["total"])


def _wait_until_ended(processes: Iterable[int]) -> None:
    """Wait at most ten seconds; what goes on working then is measured as load."""
    # Workers, and processes that are still importing, end a moment after their parent.
    deadline = time.monotonic() + 10
    while any(map(proportional_set, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _started(out: Path) -> subprocess.Popen[str]:
    with no_interrupts():  # Ctrl-C is handled by this process, which ends the other
        return subprocess.Popen([*COMMAND, "--out", str(out)], stdout=subprocess.DEVNULL, text=True)
