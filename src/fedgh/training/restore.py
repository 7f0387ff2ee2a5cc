"""Load a run from its folder: the experiment, and the clients after the last committed round.

Networks and data that its configuration names are used only as far as the caller trusts the folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedgh import config as configs
from fedgh.config import LOCATIONS, Config
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
from fedgh.training.public import missing_data_set
from fedgh.training.run import Run
from fedgh.training.same import check_same
from fedgh.trust import Trust

MAX_PARAMETERS = 2**24
"""Parameters of a network that is created for an untrusted folder: sixteen such take one GiB."""

UNUSED_BY_MODELS = (*LOCATIONS, "run.device", "run.global_accuracy", "privacy.protects")
"""Settings that do not change what a trained model computes."""

FORGETTING = "forgetting"
"""The name, in a run's state, of the client that an unfinished `fedgh forget` removes."""

MAX_EXTRA_BYTES = 2**26
"""Bytes of a client's state beyond four times the client's size, for tensors of the method."""


@dataclass(frozen=True)
class Checkpoint:
    """The clients of a run after its last committed round."""

    experiment: Experiment
    blueprint: Blueprint
    round: int
    took_part: list[int]  # clients with a trained model
    files: ClientFiles

    @property
    def data(self) -> bool:
        """True if the clients have their data."""
        return len(self.experiment.source) > 0

    def client(self, number: int) -> Client:
        """Return a client that took part, with its final model.

        Raise RunError if its saved state does not fit its network.
        """
        return load_client(self.blueprint, number, self.files)


def load_client(blueprint: Blueprint, number: int, files: ClientFiles) -> Client:
    """Return a client in its newest state in these files, which have one.

    Raise RunError if the state is damaged or does not fit the client's network.
    """
    try:
        client = blueprint.make(number)
        saved = files.load(number, MAX_EXTRA_BYTES + 4 * client.nbytes)
        assert saved is not None, "the file was checked before"
        client.load(saved)
    except FedghError:
        raise
    except Exception as error:  # a user's network may have changed, and may raise anything
        raise RunError(
            f"the state of client {number} does not fit its current network: "
            f"{printable(one_line(error))}"
        ) from None
    return client


def load(folder: RunFolder, *, trust: Trust, forgetting: bool = False) -> Checkpoint:
    """Load the clients of a run and their data. Raise RunError if something is missing.

    The clients of a `Run` are made from its experiment: code and data named in its folder are not
    used. `forgetting` allows a run in which `fedgh forget` was interrupted; only that command can
    continue with it.
    """
    if isinstance(folder, Run):
        return load_with(folder, folder.experiment, forgetting=forgetting)
    _check_models_are_here(folder)
    config = _config(folder, trust, ("run.address", "run.callbacks"))
    if config.data.name == "private":
        raise RunError("the data are on the clients' machines")
    missing = missing_data_set(config)
    if missing is not None:
        raise RunError(f"{missing} is not on this machine (fedgh data fetch {missing})")
    _check_sizes(folder, config, trust)
    return load_with(folder, experiments.prepare(config), forgetting=forgetting)


def load_with(folder: RunFolder, experiment: Experiment, *, forgetting: bool = False) -> Checkpoint:
    """Load the clients of a run of this experiment, without code or data that its folder names."""
    _check_models_are_here(folder)
    check_same(folder, experiment)
    return _checkpoint(folder, experiment, forgetting=forgetting)


def load_models(
    folder: RunFolder, specs: Sequence[ClientSpec] | None = None, *, trust: Trust
) -> Checkpoint:
    """Load the clients of a run from its folder alone, with their models but without data.

    Networks that were given in Python must be given again in `specs`.
    """
    _check_models_are_here(folder)
    # First without the networks: those that were given in Python cannot be imported by name.
    config = _config(folder, trust, (*UNUSED_BY_MODELS, "model.extractors"))
    if config.data.name == "private":
        raise RunError("the models are on the clients' machines")
    if config.data.name == "own":
        return _checkpoint(folder, _from_specs(folder, config, specs or ()))
    config = _config(folder, trust, UNUSED_BY_MODELS)
    _check_sizes(folder, config, trust)
    return _checkpoint(folder, _from_config(folder, config))


def _check_sizes(folder: RunFolder, config: Config, trust: Trust) -> None:
    """Raise RunError if an untrusted folder asks for networks that are too large."""
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
                "be created for an untrusted folder; --trust allows it (in Python: trust=True)"
            )


def unfinished_forget(folder: RunFolder, state: Payload) -> RunError:
    """Return the error for a run in which `fedgh forget` was interrupted."""
    client = int(state[FORGETTING])
    return RunError(
        f"{folder.path}: `fedgh forget` was interrupted, so some clients have an old header; run "
        f"it again: fedgh forget {folder.path} --client {client}"
    )


def _checkpoint(
    folder: RunFolder, experiment: Experiment, *, forgetting: bool = False
) -> Checkpoint:
    round, state = folder.committed()
    if FORGETTING in state and not forgetting:
        raise unfinished_forget(folder, state)
    trained = state["trained"].tolist()
    try:
        files = folder.client_files(round)
        files.check(trained)
    except RunError:
        if folder.committed()[0] == round:
            raise
        return _checkpoint(folder, experiment, forgetting=forgetting)  # the run has gone on
    took_part = [client for client, last in enumerate(trained) if last]
    return Checkpoint(experiment, experiment.blueprint(), round, took_part, files)


def _check_models_are_here(folder: RunFolder) -> None:
    folder.check_exists()
    if (folder.path / "flower.json").exists():
        raise RunError("the models and their test data are on the clients' machines")
    if not folder.checkpoint.is_dir():
        raise RunError("the run folder has no checkpoint/, so its models are missing")


def _config(folder: RunFolder, trust: Trust, ignoring: Sequence[str] = ()) -> Config:
    try:
        return configs.load_run(folder.config, trust=trust, ignoring=ignoring)
    except ConfigError as error:
        raise ConfigError(f"{folder.path}: {'; '.join(str(error).splitlines())}") from None


def _from_config(folder: RunFolder, config: Config) -> Experiment:
    """Return an experiment without samples, with the networks that its configuration names."""
    identity = folder.identity()
    source = _no_samples(folder, identity.shape, identity.dtype, "data.json")
    networks = tuple(_found_when_called(name) for name in config.model.extractors)
    return Experiment(config, (source,), partition.empty(config.federation.clients), networks)


def _from_specs(folder: RunFolder, config: Config, specs: Sequence[ClientSpec]) -> Experiment:
    """Return an experiment without samples, with the networks of these specs."""
    clients = folder.clients()
    if len(specs) != len(clients):
        raise RunError(
            f"the networks of {folder.path} were given in Python; give all {len(clients)} again: "
            "TrainedFederation.load(path, clients=[...])"
        )
    sources = tuple(
        _no_samples(folder, client.shape, client.dtype, "clients.json") for client in clients
    )
    networks = tuple(
        spec.extractor(source.shape, source.num_classes, config.model.rep_dim)
        for spec, source in zip(specs, sources, strict=True)
    )
    return Experiment(config, sources, partition.empty(len(clients)), networks)


def _no_samples(folder: RunFolder, shape: Sequence[int], dtype: str, file: str) -> Source:
    """Return a data set of this shape and dtype without samples."""
    dtypes = {"uint8": torch.uint8, "float32": torch.float32}
    try:
        none = torch.empty(0, *shape, dtype=dtypes[dtype])
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise RunError(f"{folder.path / file} is not what a run writes: shape, dtype") from None
    identity = folder.identity()
    return Source(identity.name, none, torch.empty(0), tuple(identity.classes))


def _found_when_called(name: str) -> Extractor:
    """Return an extractor that looks up its name only when a client's network is made."""
    return lambda shape, rep_dim: extractor(name)(shape, rep_dim)
