"""A run again, from its folder: the experiment, and the clients as the last round left them.

As resuming does, this loads the data and imports the networks that the configuration names.
"""

from dataclasses import dataclass

from fedgh import config as configs
from fedgh.core.checkpoint import ClientFiles, check_clients
from fedgh.core.runs import RunFolder
from fedgh.core.types import Client
from fedgh.data.fetch import OFFICIAL, find
from fedgh.engines.host import Blueprint
from fedgh.errors import RunError
from fedgh.experiment import Experiment, prepare


@dataclass(frozen=True)
class Checkpoint:
    """The clients of a run after its last committed round."""

    experiment: Experiment
    blueprint: Blueprint
    round: int
    took_part: list[int]  # clients with a trained model
    _files: ClientFiles

    def client(self, number: int) -> Client:
        """One of those that took part, with its final model."""
        client = self.blueprint.make(number)
        saved = self._files.load(number)
        assert saved is not None, "its state was checked"
        client.load(saved)
        return client


def load(folder: RunFolder) -> Checkpoint:
    """What a run has left; RunError says what is missing."""
    if (folder.path / "flower.json").exists():
        raise RunError("the models and their test data are with the participants")
    experiment = _prepare(folder)
    round, state = folder.committed()
    trained = state["trained"].tolist()
    check_clients(folder.checkpoint, round, trained)
    took_part = [client for client, last in enumerate(trained) if last]
    files = ClientFiles(folder.checkpoint, round)
    return Checkpoint(experiment, experiment.blueprint(), round, took_part, files)


def _prepare(folder: RunFolder) -> Experiment:
    config = configs.load(folder.config)
    data = config.data
    if data.name in OFFICIAL and find(data.name, data.dir) is None:
        raise RunError(f"{data.name} is not on this machine (fedgh data fetch {data.name})")
    experiment = prepare(config)
    if experiment.private:
        raise RunError("the data are with the participants")
    if experiment.fingerprint() != folder.identity()["fingerprint"]:
        raise RunError("the data it was trained on are not the ones that its configuration names")
    return experiment
