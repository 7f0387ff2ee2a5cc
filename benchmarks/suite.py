"""What is measured, in which order, and with which data."""

import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks import header, methods, overhead, rounds, scale
from benchmarks.helpers import Helpers
from fedgh import __version__, config
from fedgh.core.rng import stream
from fedgh.data.fetch import find
from fedgh.data.sources import Source
from fedgh.runs.summary import processor
from fedgh.training.experiment import load_source

Numbers = dict[str, float | str | bool]

QUICK_IMAGES = 8_000


@dataclass(frozen=True)
class Bench:
    """What a section has at hand."""

    quick: bool
    source: Source
    folder: Path  # for run folders; taken away at the end
    helpers: Helpers
    numbers: Numbers = field(default_factory=dict)  # what has been measured so far


Section = Callable[[Bench], Iterator[tuple[str, float]]]
"""Yields named numbers as they come. The first line of its docstring is its title."""

SECTIONS: tuple[Section, ...] = (
    rounds.whole_rounds,
    header.header_training,
    overhead.engine_overhead,
    methods.all_methods,
    scale.many_clients,
)


def measure(
    sections: Sequence[Section],
    *,
    quick: bool = False,
    data_dir: Path | None = None,
    began: Callable[[str], None] = lambda _: None,
    found: Callable[[str, float], None] = lambda _, __: None,
) -> Numbers:
    """Run the sections; `began` is told each title, `found` each number as soon as it is there."""
    source = images(quick, data_dir)
    with tempfile.TemporaryDirectory(prefix="fedgh-bench-") as folder, Helpers() as helpers:
        bench = Bench(quick, source, Path(folder), helpers)
        for section in sections:
            began((section.__doc__ or "").splitlines()[0])
            for name, value in section(bench):
                bench.numbers[name] = value
                found(name, value)
    return {
        **bench.numbers,
        "quick": quick,
        "data": source.name,
        "images": len(source),
        "workers": helpers.count,
        "processor": processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedgh": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def images(quick: bool, data_dir: Path | None) -> Source:
    """CIFAR-10 where it is, else random images of the same shape: they cost the same."""
    if find("cifar10", data_dir) is not None:
        source = load_source(config.load("cifar10-hetero", data_dir=data_dir).data)
    else:
        rng = stream(0, "bench")
        x = torch.randint(0, 256, (60_000, 3, 32, 32), dtype=torch.uint8, generator=rng)
        source = Source("random images", x, torch.arange(60_000) % 10, tuple("0123456789"))
    if not quick:
        return source
    some = torch.randperm(len(source), generator=stream(0, "quick"))[:QUICK_IMAGES]
    return Source(source.name, source.x[some], source.y[some], source.class_names)
