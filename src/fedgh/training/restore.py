"""A run again, from its folder: the experiment, and the clients as the last round left them.

The networks and data that the configuration names are used as far as the caller trusts the folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedgh import config as configs
from fedgh.config import PLACES, Config
from fedgh.core.types import Client, Payload, Task
from fedgh.data import partition
from fedgh.data.sources import Source
from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, FedghError, RunError, one_line, printable
from fedgh.models import Extractor, extractor, is_packaged, parameters_of
from fedgh.runs.checkpoint import ClientFiles
from fedgh.runs.folder import RunFolder
from fedgh.training import experiment as experiments
from fedgh.training.client_spec import ClientSpec
from fedgh.training.experiment import Experiment
from fedgh.training.public import not_here
from fedgh.training.run import Run
from fedgh.training.same import check_same
from fedgh.trust import Trust

MAX_PARAMETERS = 2**24
"""Parameters of a network made for a folder from elsewhere: sixteen such take one GiB."""

NEEDLESS = (*PLACES, "run.device", "run.global_accuracy", "privacy.protects")
"""Settings of no importance to what a trained model computes."""


FORGETTING = "forgetting"
"""In the state of a run: the client that `fedgh forget` has begun to take out."""

SLACK = 2**26
"""Bytes that a state may have beyond four times the size of its client: a method's own memory."""


@dataclass(frozen=True)
class Checkpoint:
    """The clients of a run after its last committed round."""

    experiment: Experiment
    blueprint: Blueprint
    round: int
    took_part: list[int]  # clients with a trained model
    _files: ClientFiles

    @property
    def data(self) -> bool:
        """Whether the clients have their data, too."""
        return len(self.experiment.source) > 0

    def client(self, number: int) -> Client:
        """One of those that took part, with its final model."""
        try:
            client = self.blueprint.make(number)
            saved = self._files.load(number, SLACK + 4 * client.nbytes)
            assert saved is not None, "its state was checked"
            client.load(saved)
        except FedghError:
            raise
        except Exception as error:  # a user's network may have changed, and may raise anything
            raise RunError(
                f"the state of client {number} does not fit its network as it is now: "
                f"{printable(one_line(error))}"
            ) from None
        return client


def load(folder: RunFolder, *, trust: Trust, forgetting: bool = False) -> Checkpoint:
    """Load the clients of a run and their data; RunError says what is missing.

    Those of a `Run` are made from its experiment: nothing that its folder names is used.

    One that `fedgh forget` was killed in is only for that command.
    """
    if isinstance(folder, Run):
        return load_with(folder, folder.experiment, forgetting=forgetting)
    _check_models_are_here(folder)
    config = _config(folder, trust, ("run.address", "run.callbacks"))
    if config.data.name == "private":
        raise RunError("the data are with the clients")
    missing = not_here(config)
    if missing is not None:
        raise RunError(f"{missing} is not on this machine (fedgh data fetch {missing})")
    _check_sizes(folder, config, trust)
    return load_with(folder, experiments.prepare(config), forgetting=forgetting)


def load_with(folder: RunFolder, experiment: Experiment, *, forgetting: bool = False) -> Checkpoint:
    """Load the clients of a run of this experiment; nothing that its folder names is used."""
    _check_models_are_here(folder)
    check_same(folder, experiment)
    return _left(folder, experiment, forgetting=forgetting)


def load_models(
    folder: RunFolder, specs: Sequence[ClientSpec] | None = None, *, trust: Trust
) -> Checkpoint:
    """Load the clients of a run from its folder alone: with their models, without data.

    Networks that were given in Python have to be given again, as the clients of then.
    """
    _check_models_are_here(folder)
    # First without its networks: those of a run from Python have no names to import.
    config = _config(folder, trust, (*NEEDLESS, "model.extractors"))
    if config.data.name == "private":
        raise RunError("the models are with the clients")
    if config.data.name == "own":
        return _left(folder, _from_specs(folder, config, specs or ()))
    config = _config(folder, trust, NEEDLESS)
    _check_sizes(folder, config, trust)
    return _left(folder, _as_named(folder, config))


def _check_sizes(folder: RunFolder, config: Config, trust: Trust) -> None:
    """Refuse networks that are too large to be made for a folder from elsewhere."""
    if trust.limits is None:
        return
    identity = folder.identity()
    shape = tuple(identity.shape)
    trust.limits.check_shape(f"{folder.path / 'data.json'}: shape", shape)
    classes, rep_dim = len(identity.classes), config.model.rep_dim
    for name in sorted(filter(is_packaged, set(config.model.extractors))):
        size = parameters_of(name, Task(classes, rep_dim, 1, 1, 0, shape))
        if size is None or size > MAX_PARAMETERS:
            raise RunError(
                f"{folder.path}: '{name}' does not fit inputs of shape {shape}, or is too large to "
                "be made for a folder from elsewhere (--trust, in Python trust=True)"
            )


def interrupted(folder: RunFolder, state: Payload) -> RunError:
    """Return the error for a run in which some clients still have a header of before."""
    client = int(state[FORGETTING])
    return RunError(
        f"{folder.path}: a client is being forgotten; finish that first: "
        f"fedgh forget {folder.path} --client {client}"
    )


def _left(folder: RunFolder, experiment: Experiment, *, forgetting: bool = False) -> Checkpoint:
    round, state = folder.committed()
    if FORGETTING in state and not forgetting:
        raise interrupted(folder, state)
    trained = state["trained"].tolist()
    files = folder.client_files(round)
    files.check(trained)
    took_part = [client for client, last in enumerate(trained) if last]
    return Checkpoint(experiment, experiment.blueprint(), round, took_part, files)


def _check_models_are_here(folder: RunFolder) -> None:
    folder.check_exists()
    if (folder.path / "flower.json").exists():
        raise RunError("the models and their test data are with the clients")
    if not folder.checkpoint.is_dir():
        raise RunError("the run folder has no checkpoint/: its models are not here")


def _config(folder: RunFolder, trust: Trust, ignoring: Sequence[str] = ()) -> Config:
    try:
        return configs.load_run(folder.config, trust=trust, ignoring=ignoring)
    except ConfigError as error:
        raise ConfigError(f"{folder.path}: {'; '.join(str(error).splitlines())}") from None


def _as_named(folder: RunFolder, config: Config) -> Experiment:
    """An experiment without samples, with the networks that its configuration names."""
    known = folder.identity()
    source = _no_samples(folder, known.shape, known.dtype, "data.json")
    networks = tuple(_when_needed(name) for name in config.model.extractors)
    return Experiment(config, (source,), partition.nothing(config.federation.clients), networks)


def _from_specs(folder: RunFolder, config: Config, specs: Sequence[ClientSpec]) -> Experiment:
    """The same with the networks of these clients."""
    about = folder.clients()
    if len(specs) != len(about):
        raise RunError(
            f"the networks of {folder.path} were given in Python; give all {len(about)} again: "
            "TrainedFederation.load(path, clients=[...])"
        )
    sources = tuple(
        _no_samples(folder, client.shape, client.dtype, "clients.json") for client in about
    )
    networks = tuple(
        spec.extractor(source.shape, source.num_classes, config.model.rep_dim)
        for spec, source in zip(specs, sources, strict=True)
    )
    return Experiment(config, sources, partition.nothing(len(about)), networks)


def _no_samples(folder: RunFolder, shape: Sequence[int], dtype: str, file: str) -> Source:
    """Data of that shape and type, and none of them."""
    dtypes = {"uint8": torch.uint8, "float32": torch.float32}
    try:
        none = torch.empty(0, *shape, dtype=dtypes[dtype])
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise RunError(f"{folder.path / file} is not what a run writes: shape, dtype") from None
    known = folder.identity()
    return Source(known.name, none, torch.empty(0), tuple(known.classes))


def _when_needed(name: str) -> Extractor:
    """The network of that name, found only when a client that has it is made."""
    return lambda shape, rep_dim: extractor(name)(shape, rep_dim)
