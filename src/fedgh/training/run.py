"""A run, and the experiment that was run."""

from pathlib import Path

from fedgh.runs.folder import RunFolder
from fedgh.training import restore
from fedgh.training.experiment import Experiment
from fedgh.training.restore import Checkpoint


class Run(RunFolder):
    """A run folder with its experiment at hand: its data are not loaded and dealt again."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        super().__init__(path)
        self.experiment = experiment

    def load(self) -> Checkpoint:
        """Load the clients as the last committed round has left them."""
        return restore.load_with(self, self.experiment)
