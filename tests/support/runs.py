"""Settings of runs that use many features, and runs that are interrupted."""

from pathlib import Path

import pytest

from fedgh.core.records import Round
from fedgh.training import loop
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment

# Real networks, batch norm, dropout, augmentation, momentum, partial participation, rare
# evaluation: everything that could make two runs differ.
EVERYTHING = [
    "model.extractors=cnn5,tests.support.tiny:noisy",
    "federation.rounds=4",
    "federation.participation=0.6",
    "local.augment=flip,crop,erase",
    "local.epochs=1",
    "local.batch_size=64",
    "local.momentum=0.9",
    "local.clip=1.0",
    "run.eval_every=3",
    "run.global_accuracy=every",
]


class StopAfter(Callback):
    """Interrupt the run after a round, like Ctrl-C."""

    def __init__(self, round: int) -> None:
        self.round = round

    def finished_round(self, record: Round) -> None:
        if record.round == self.round:
            raise KeyboardInterrupt


def interrupted(prepared: Experiment, out: Path, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        loop.run(prepared, out, [StopAfter(after)])
