"""The numbers of every round for TensorBoard."""

from pathlib import Path

from fedgh.core.runs import Record, RunFolder
from fedgh.core.types import Reply
from fedgh.experiment import Experiment
from fedgh.report.extra import need

SCALARS = ("accuracy", "evaluation_accuracy", "global_accuracy", "train_loss", "bytes_total")


def need_tensorboard() -> None:
    """Refuse `run.tensorboard` where TensorBoard is not installed."""
    need("tensorboard", "run.tensorboard")


class Scalars:
    """Watches a run and writes event files."""

    def __init__(self, folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # an extra

        # What an interrupted run has written of later rounds does not count.
        self._writer = SummaryWriter(folder, purge_step=done + 1)

    def started(self, experiment: Experiment, run: RunFolder, done: list[Record]) -> None:
        """Nothing to write yet."""

    def replied(self, reply: Reply) -> None:
        """A single client is not written."""

    def finished_round(self, record: Record) -> None:
        """Write what the round's record says."""
        step = record["round"]
        for name in SCALARS:
            if record.get(name) is not None:
                self._writer.add_scalar(name, record[name], step)
        for phase, seconds in record["seconds"].items():
            self._writer.add_scalar(f"seconds/{phase}", seconds, step)
        self._writer.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._writer.close()
