"""A run folder together with its experiment in memory."""

from pathlib import Path

from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment


class Run(RunFolder):
    """A run folder with its experiment in memory, so that its data are not loaded again.

    `fedgh.TrainedFederation(run)` gives its final clients; `fedgh.write_report(run)` writes its
    report.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        super().__init__(path)
        self.experiment = experiment
