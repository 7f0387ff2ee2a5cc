"""A run, and the experiment that was run."""

from pathlib import Path

from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment


class Run(RunFolder):
    """A run folder with its experiment at hand: its data are not loaded and dealt again.

    `fedgh.TrainedFederation(run)` has its final clients, `fedgh.write_report(run)` writes its page.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        super().__init__(path)
        self.experiment = experiment
