"""Round time of each method, relative to training alone."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from benchmarks.rounds import Stopwatch, hetero
from fedgh.data.sources import Source
from fedgh.methods import METHODS
from fedgh.training import loop

if TYPE_CHECKING:
    from benchmarks.suite import Bench

IMAGES = 12_000

FEW = {
    "fedzkt": ["method.server_steps=2"],
    "fjord": ["method.widths=cnn3@1/5,cnn3@2/5,cnn3@3/5,cnn3@4/5,cnn3"],
    "fccl": ["method.pretrain_epochs=1"],
}
"""Settings of methods whose usual round takes many minutes, or that do not fit CNN-3 everywhere."""

PUBLIC = ["public.name=held-out", "public.samples=1000"]
"""Public data of methods that need them; the clients then have that many samples less."""


def all_methods(bench: "Bench", names: Collection[str] = METHODS) -> Iterator[tuple[str, float]]:
    """Round time of every method relative to standalone (CNN-3 everywhere, E = 1, B = 64)"""
    source = bench.source
    n = IMAGES // 3 if bench.quick else IMAGES
    part = Source(source.name, source.x[:n], source.y[:n], source.class_names)
    seconds = {}
    for name in ("standalone", *sorted(set(names) - {"standalone"})):
        watch = Stopwatch()
        overrides = ["model.extractors=cnn3", f"method.name={name}", *FEW.get(name, [])]
        if METHODS[name]().public_for != "none":
            overrides += PUBLIC
        experiment = hetero(part, 64, 1, 3, *overrides)
        loop.run(experiment, bench.folder / f"method-{name}", [watch])
        # The fastest round: other work on the machine only adds time.
        seconds[name] = min(timed.seconds for timed in watch.rounds)
        yield f"method_{name}_over_standalone", seconds[name] / seconds["standalone"]
