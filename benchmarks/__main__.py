"""The complete benchmark: `make bench`, or `make bench QUICK=1`.

It measures rounds, header, idle participants, methods, scale and the start of a run, compares a
round with a plain implementation, and checks the numbers against the project's targets. It compares
them with benchmarks/results/KIND.json, the result of the same kind of machine, and replaces this
file. The numbers of a quick benchmark and those of a busy machine are not a result.

The exit code is 1 if others use the machine meanwhile, or if a number is worse by more than 10%.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.load import load_by_others
from benchmarks.machine import this_machine
from benchmarks.plain import plain_clients, plain_round
from benchmarks.rounds import hetero
from benchmarks.suite import SECTIONS, Bench
from benchmarks.terminal import bench, conclude, verdicts
from fedgh.core.types import part
from fedgh.methods.fedgh import FedGH
from fedgh.training import loop

RESULTS = Path(__file__).parent / "results"

AT_LEAST = {
    "round_fraction_of_limit_b64_e5": 0.58,
    "round_fraction_of_limit_b512_e5": 0.66,
    "speedup_over_plain_e1": 3.0,
    "speedup_over_plain_e5": 2.0,
    "header_speedup_c10": 20.0,
    "header_speedup_c100": 20.0,
}
AT_MOST = {
    "plain_difference": 1e-4,
    "header_difference_c10": 1e-4,
    "header_difference_c100": 1e-4,
    "million_pairs_seconds": 30.0,
    "scale_time_ratio_100_to_100000": 1.3,
    "scale_peak_gib_100000": 3.0,
    "scale_peak_gib_1000_of_100000": 4.0,
    "start_seconds": 4.0,
    "start_peak_mib": 600.0,
}


def against_plain(bench: Bench) -> Iterator[tuple[str, float]]:
    """A FedGH round (B = 64) in a plain implementation, for comparison"""
    yield "plain_difference", _difference(bench)
    for epochs in (1, 5):
        experiment = hetero(bench.source, 64, epochs, 1)
        clients, header = plain_clients(experiment), experiment.initial_server()
        start = time.perf_counter()
        plain_round(clients, header, _server_lr(experiment.config.method))
        seconds = time.perf_counter() - start
        yield f"plain_seconds_e{epochs}", seconds
        ours = bench.numbers[f"round_seconds_b64_e{epochs}"]
        assert isinstance(ours, float)
        yield f"speedup_over_plain_e{epochs}", seconds / ours


def _difference(bench: Bench) -> float:
    """Return the largest difference between headers or accuracies of fedgh and the plain version.

    Both compute one round without augmentation.
    """
    source = type(bench.source)(
        "some", bench.source.x[:6000], bench.source.y[:6000], bench.source.class_names
    )
    experiment = hetero(source, 64, 1, 1, "local.augment=[]")
    run = loop.run(experiment, bench.folder / "compared")
    ours = part(run.committed()[1], "server.")
    header, accuracies = plain_round(
        plain_clients(experiment),
        experiment.initial_server(),
        _server_lr(experiment.config.method),
    )
    in_header = max(float((ours[name] - header[name]).abs().max()) for name in header)
    pairs = zip(run.records()[0].accuracies, accuracies, strict=True)
    return float(max(in_header, *(abs((a or 0) - b) for a, b in pairs)))


def _server_lr(method: object) -> float:
    assert isinstance(method, FedGH)
    return method.server_lr


def main(load: Callable[[], float | None]) -> int:
    """Measure, print which targets are met, and write a result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer images; never a result")
    quick = parser.parse_args().quick
    console = Console()
    out = RESULTS / f"{this_machine().kind}.json"
    stored = json.loads(out.read_text()) if out.exists() else {}
    sections = (SECTIONS[0], against_plain, *SECTIONS[1:])
    numbers = bench(console, sections, quick=quick, load=load, out=out)
    console.print(verdicts(numbers, AT_LEAST, AT_MOST))
    return conclude(console, numbers, stored, out)


if __name__ == "__main__":
    sys.exit(main(load_by_others()))
