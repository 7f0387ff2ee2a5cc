"""Time and memory of rounds of up to 100,000 clients, with ten or a thousand participants.

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

from benchmarks.machine import GIB
from benchmarks.memory import peak_memory
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
ROUNDS = 10
MANY_PARTICIPANTS = 1_000
MANY_ROUNDS = 3  # of minutes
SAMPLES = 10  # of each client


def many_clients(bench: "Bench") -> Iterator[tuple[str, float]]:
    """Ten participants of N clients: seconds of a round, peak memory of all processes"""
    rounds = ROUNDS // 2 if bench.quick else ROUNDS
    # These rounds are short, and other programs may slow the machine down for a moment. So all
    # sizes are measured in turn, several times, and the fastest run of each size counts.
    turns = [
        [_measure(clients, PARTICIPANTS, rounds) for clients in SIZES]
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


def many_participants(bench: "Bench") -> Iterator[tuple[str, float]]:
    """A thousand participants of 100,000 clients: seconds of a round, peak memory"""
    clients, rounds = SIZES[-1], MANY_ROUNDS - 1 if bench.quick else MANY_ROUNDS
    seconds, prepared, peak = _measure(clients, MANY_PARTICIPANTS, rounds)
    suffix = f"{MANY_PARTICIPANTS}_of_{clients}"
    yield f"scale_seconds_{suffix}", seconds
    yield f"scale_prepare_seconds_{suffix}", prepared
    if peak:
        yield f"scale_peak_gib_{suffix}", peak / GIB


def simulate(clients: int, participants: int, rounds: int, out: Path) -> tuple[float, float]:
    """Run a federation; return the median seconds of a round, and the seconds of preparation."""
    start = time.perf_counter()
    rng = stream(0, "scale")
    n = clients * SAMPLES
    x = torch.randint(0, 256, (n, 1, 32, 32), dtype=torch.uint8, generator=rng)
    source = Source("random images", x, torch.arange(n) % 10, tuple("0123456789"))
    settings = [
        f"federation.clients={clients}",
        f"federation.participation={participants / clients}",
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


def _measure(clients: int, participants: int, rounds: int) -> tuple[float, float, int]:
    """Return the seconds of a round, those of the preparation, and the peak memory in bytes."""
    with tempfile.TemporaryDirectory(prefix="fedgh-scale-") as folder:
        command = [sys.executable, "-m", __name__, *map(str, (clients, participants, rounds))]
        with no_interrupts():  # Ctrl-C is handled by this process, which ends the other
            process = subprocess.Popen([*command, folder], stdout=subprocess.PIPE, text=True)
        with process:
            try:
                peak = peak_memory(process, every=0.2)
                assert process.stdout is not None
                out = process.stdout.read()
            finally:
                process.terminate()
    if process.returncode:
        raise RunError(f"{clients} clients: the measurement failed; its error is above")
    seconds, prepared = json.loads(out)
    return seconds, prepared, peak


if __name__ == "__main__":
    clients, participants, rounds = map(int, sys.argv[1:4])
    print(json.dumps(simulate(clients, participants, rounds, Path(sys.argv[4]) / "run")))
