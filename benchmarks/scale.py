"""Time and memory of rounds with ten participants, for up to 100,000 clients.

Every number of clients runs in a process of its own, whose memory this process measures.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch

from benchmarks.rounds import Stopwatch
from fedgh import config
from fedgh.core.rng import stream
from fedgh.data.sources import Source
from fedgh.engines.forkserver import no_interrupts
from fedgh.errors import RunError
from fedgh.training import loop
from fedgh.training.experiment import prepare

if TYPE_CHECKING:
    from benchmarks.suite import Bench

SIZES = (10, 100, 1_000, 10_000, 100_000)
PARTICIPANTS = 10
SAMPLES = 10  # of each client
ROUNDS = 10
GIB = 2**30


def many_clients(bench: "Bench") -> Iterator[tuple[str, float]]:
    """Ten participants of N clients: seconds of a round, peak memory of all processes"""
    # These rounds are short, and other programs may slow the machine down for a moment. So all
    # sizes are measured in turn, several times, and the fastest run of each size counts.
    turns = [
        [_measure(clients, bench.quick) for clients in SIZES]
        for _ in range(1 if bench.quick else 3)
    ]
    seconds = {}
    for clients, *runs in zip(SIZES, *turns, strict=True):
        seconds[clients], prepared, _ = min(runs)
        yield f"scale_seconds_{clients}", seconds[clients]
        yield f"scale_prepare_seconds_{clients}", prepared
        peak = max(peak for _, _, peak in runs)
        if peak:  # not every system reports it
            yield f"scale_peak_gib_{clients}", peak / GIB
    yield "scale_time_ratio_100_to_100000", seconds[100_000] / seconds[100]


def simulate(clients: int, rounds: int, out: Path) -> tuple[float, float]:
    """Run a federation; return the median seconds of a round, and the seconds of preparation."""
    start = time.perf_counter()
    rng = stream(0, "scale")
    n = clients * SAMPLES
    x = torch.randint(0, 256, (n, 1, 32, 32), dtype=torch.uint8, generator=rng)
    source = Source("random images", x, torch.arange(n) % 10, tuple("0123456789"))
    settings = [
        f"federation.clients={clients}",
        f"federation.participation={PARTICIPANTS / clients}",
        f"federation.rounds={rounds}",
        "local.epochs=10",
        "local.batch_size=8",
        "run.evaluate=trained",
        "run.global_accuracy=never",
        "run.memory=0.5",
    ]
    experiment = prepare(config.load("demo", settings), source=source)
    del x, source
    watch = Stopwatch()
    prepared = time.perf_counter() - start
    loop.run(experiment, out, [watch])
    return median(timed.seconds for timed in watch.rounds), prepared


def _measure(clients: int, quick: bool) -> tuple[float, float, int]:
    with tempfile.TemporaryDirectory(prefix="fedgh-scale-") as folder:
        rounds = ROUNDS // 2 if quick else ROUNDS
        command = [sys.executable, "-m", __name__, str(clients), str(rounds), folder]
        with no_interrupts():  # Ctrl-C is handled by this process, which ends the other
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with process:
            try:
                peak = 0
                while process.poll() is None:
                    peak = max(peak, sum(map(proportional_set, tree(process.pid))))
                    time.sleep(0.2)
                assert process.stdout is not None
                out = process.stdout.read()
            finally:
                process.terminate()
    if process.returncode:
        raise RunError(f"{clients} clients: the measurement failed; its error is above")
    seconds, prepared = json.loads(out)
    return seconds, prepared, peak


def tree(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    pids = [pid]
    for parent in pids:  # the list grows during the loop
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pids += map(int, children.read_text().split())
            except OSError:  # the process has ended
                continue
    return pids


def proportional_set(pid: int) -> int:
    """Return the memory of a process in bytes; shared memory is divided between its users."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    print(json.dumps(simulate(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) / "run")))
