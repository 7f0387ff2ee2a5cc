"""Speed of complete FedGH rounds, compared with the limit of the machine."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import torch

from fedgh import config
from fedgh.core.batches import shuffled
from fedgh.core.records import Round
from fedgh.core.rng import stream
from fedgh.core.types import Augmentation, Examples
from fedgh.data.sources import Source
from fedgh.models.cost import forward_flops, training_flops
from fedgh.training import loop
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment, prepare

if TYPE_CHECKING:
    from benchmarks.suite import Bench

AUGMENTED_IMAGES = 4096


@dataclass(frozen=True)
class TimedRound:
    """The duration of a round with its checkpoint, and a value measured before and after it."""

    seconds: float
    around: float  # mean of the values before and after the round
    record: Round


class Stopwatch(Callback):
    """A callback that times every round except the first, in which workers and clients start.

    `between` is a measurement that is taken between rounds and not timed.
    """

    def __init__(self, between: Callable[[], float] = lambda: 0.0) -> None:
        self.rounds: list[TimedRound] = []
        self._between = between
        self._before: tuple[float, float] | None = None

    def finished_round(self, record: Round) -> None:
        """Stop the time, take the measurement between rounds, and start again."""
        now = time.perf_counter()
        value = self._between()
        if self._before is not None:
            start, earlier = self._before
            self.rounds.append(TimedRound(now - start, (earlier + value) / 2, record))
        self._before = (time.perf_counter(), value)


def whole_rounds(bench: "Bench") -> Iterator[tuple[str, float]]:
    """FedGH on CIFAR-10: 10 clients, CNN-1 to CNN-5, augmentation, class means and evaluation"""
    limits: list[float] = []
    for batch in (64, 512):
        for epochs in (1, 5):
            experiment = hetero(bench.source, batch, epochs, rounds=3 if epochs == 1 else 2)
            watch = Stopwatch(bench.helpers.limit)
            loop.run(experiment, _new_folder(bench.folder), [watch])
            limits += [timed.around for timed in watch.rounds]
            yield from _report(bench, experiment, watch.rounds)
    yield "limit_gflops", mean(limits)


def hetero(source: Source, batch: int, epochs: int, rounds: int, *more: str) -> Experiment:
    """Return the heterogeneous CIFAR-10 experiment with these numbers of epochs and rounds."""
    settings = [
        f"local.batch_size={batch}",
        f"local.epochs={epochs}",
        f"federation.rounds={rounds}",
        "run.global_accuracy=never",  # so that the last round is no longer than the others
        *more,
    ]
    return prepare(config.load("cifar10-hetero", settings), source=source)


def round_flops(experiment: Experiment) -> int:
    """Return the multiplications and additions of all networks in one round of all clients."""
    epochs, total = experiment.config.local.epochs, 0
    costs = [
        (training_flops(make, experiment.task), forward_flops(make, experiment.task))
        for make in experiment.extractors
    ]
    for client in range(experiment.task.num_clients):
        train, validation, test = experiment.partition.bounds[client].diff().tolist()
        training, forward = costs[client % len(costs)]
        total += epochs * train * training + (train + validation + test) * forward
    return total


def _report(
    bench: "Bench", experiment: Experiment, rounds: list[TimedRound]
) -> Iterator[tuple[str, float]]:
    local = experiment.config.local
    suffix = f"b{local.batch_size}_e{local.epochs}"
    gflops = mean(round_flops(experiment) / 1e9 / timed.seconds for timed in rounds)
    yield f"round_seconds_{suffix}", mean(timed.seconds for timed in rounds)
    yield f"round_gflops_{suffix}", gflops
    yield f"round_fraction_of_limit_{suffix}", gflops / mean(timed.around for timed in rounds)
    spent = {
        phase: mean(timed.record.seconds[phase] for timed in rounds)
        for phase in ("train", "summarise", "evaluate", "server")
    }
    for phase, seconds in spent.items():
        yield f"round_{phase}_seconds_{suffix}", seconds
    busy = sum(spent.values())
    per_image = mean(bench.helpers.all(_augmentation, local.batch_size, tuple(local.augment)))
    images = int(experiment.partition.bounds.diff(dim=1)[:, 0].sum()) * local.epochs
    yield f"share_of_augmentation_{suffix}", per_image * images / busy
    yield f"share_of_lars_{suffix}", spent["summarise"] / busy
    yield f"share_of_evaluation_{suffix}", spent["evaluate"] / busy


def _augmentation(batch: int, augment: tuple[Augmentation, ...]) -> float:
    """Return the seconds per image for batching, augmentation and conversion to an input."""
    rng = stream(0, "augmenting")
    x = torch.randint(0, 256, (AUGMENTED_IMAGES, 32, 32, 3), dtype=torch.uint8, generator=rng)
    y = torch.zeros(AUGMENTED_IMAGES, dtype=torch.int64)
    examples = Examples(x.permute(0, 3, 1, 2), y, torch.arange(AUGMENTED_IMAGES))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in shuffled(examples, batch, rng, augment):
            pass
        seconds.append(time.perf_counter() - start)
    return min(seconds) / AUGMENTED_IMAGES


def _new_folder(folder: Path) -> Path:
    """Return the path of a run folder that does not exist yet."""
    return folder / f"run-{sum(1 for _ in folder.iterdir())}"
