"""The sections of the benchmark, and their data."""

import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks import header, idle, methods, rounds, scale, start
from benchmarks.helpers import Helpers
from benchmarks.load import LIMIT
from benchmarks.machine import this_machine
from fedgh import __version__, config
from fedgh.core.rng import stream
from fedgh.data.fetch import find
from fedgh.data.sources import Source
from fedgh.training.experiment import load_source

Numbers = dict[str, float | str | bool]

QUICK_IMAGES = 8_000

TRIES = 3
"""Times that a section of a complete benchmark is measured at most, if others use the machine."""


@dataclass(frozen=True)
class Bench:
    """The inputs of a section."""

    quick: bool
    source: Source
    folder: Path  # for run folders; deleted at the end
    helpers: Helpers
    numbers: Numbers  # measured so far


Section = Callable[[Bench], Iterator[tuple[str, float]]]
"""Function that yields named numbers. The first line of its docstring is the section's title."""

SECTIONS: tuple[Section, ...] = (
    rounds.whole_rounds,
    header.header_training,
    idle.idle_participants,
    methods.all_methods,
    scale.many_clients,
    scale.many_participants,
    start.start_of_a_run,
)


def measure(
    sections: Sequence[Section],
    *,
    load: Callable[[], float | None],
    quick: bool = False,
    data_dir: Path | None = None,
    on_section: Callable[[str], None] = lambda _: None,
    on_number: Callable[[str, float], None] = lambda _, __: None,
) -> Numbers:
    """Run the sections and return all numbers.

    `on_section` is called with the title of each section before it starts, `on_number` with each
    number as soon as it is measured. `load` measures the load by others: `load_0` is that before
    the sections, `load_1` that after the first one. It returns None where it cannot be measured.
    A section after which the load is too high is measured again, and its numbers are replaced.
    """
    numbers: Numbers = {}

    def record(name: str, value: float) -> None:
        numbers[name] = value
        on_number(name, value)

    def is_busy(sections_before: int) -> bool:
        value = load()
        if value is not None:
            record(f"load_{sections_before}", value)
        return value is not None and value > LIMIT

    is_busy(0)
    source = images(quick, data_dir)
    with tempfile.TemporaryDirectory(prefix="fedgh-bench-") as folder, Helpers() as helpers:
        for count, section in enumerate(sections, 1):
            for attempt in range(1 if quick else TRIES):
                own = Path(folder) / f"{count}-{attempt}"
                own.mkdir()
                on_section((section.__doc__ or "").splitlines()[0])
                for name, value in section(Bench(quick, source, own, helpers, numbers)):
                    record(name, value)
                if not is_busy(count):
                    break
    return {
        **numbers,
        **asdict(this_machine()),
        "quick": quick,
        "data": source.name,
        "images": len(source),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedgh": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def images(quick: bool, data_dir: Path | None) -> Source:
    """Return CIFAR-10 if it is on this machine, else random images: they take the same time."""
    if find("cifar10", data_dir) is not None:
        source = load_source(config.load("cifar10-hetero", data_dir=data_dir).data)
    else:
        rng = stream(0, "bench")
        x = torch.randint(0, 256, (60_000, 3, 32, 32), dtype=torch.uint8, generator=rng)
        source = Source("random images", x, torch.arange(60_000) % 10, tuple("0123456789"))
    if not quick:
        return source
    rows = torch.randperm(len(source), generator=stream(0, "quick"))[:QUICK_IMAGES]
    return Source(source.name, source.x[rows], source.y[rows], source.class_names)
