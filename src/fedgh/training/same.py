"""Checks that a run folder belongs to an experiment."""

from fedgh import config as configs
from fedgh.config import LOCATIONS, Config
from fedgh.core.records import FORMAT_VERSION
from fedgh.errors import RunError
from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment
from fedgh.trust import ForeignError

IRRELEVANT = {
    *("engine", "workers", "address", "memory", "checkpoint_every", "deadline", "secure_deadline"),
    *("dir", "path"),
    *("callbacks", "global_accuracy"),  # tables show a dash where it was not measured
}
"""Settings that change neither what a run learns nor its accuracy on clients' own data."""


def check_same(folder: RunFolder, experiment: Experiment) -> None:
    """Raise RunError if the folder holds another run or is damaged."""
    known = folder.identity().model_copy(
        update={"run": "", "versions": {}, "format_version": FORMAT_VERSION}
    )
    if known.fingerprint != experiment.fingerprint():
        raise RunError(
            f"{folder.path} holds another run: its data, settings, networks or initial weights "
            "differ from the current ones. Restore them (networks made in Python have the same "
            "initial weights after torch.manual_seed), or choose another folder"
        )
    if known != experiment.identity() or folder.clients() != experiment.clients():
        raise RunError(
            f"{folder.path}: data.json or clients.json was changed after the run wrote it, or "
            "clients have other names; restore the file from a copy, or choose another folder"
        )


def check_settings(folder: RunFolder, config: Config) -> None:
    """Raise RunError if the folder holds a run with other settings."""
    if not folder.config.exists():
        return
    try:
        existing = configs.load_run(
            folder.config, trust=configs.names_in(config), ignoring=LOCATIONS
        )
    except ForeignError as error:
        raise RunError(
            f"{folder.path} holds another run: {error.setting}. Choose another --out"
        ) from None
    there, wanted = existing.to_table(), config.to_table()
    differences = [
        f"{section}.{key} is {there[section].get(key)} there, {wanted[section].get(key)} requested"
        for section in wanted
        for key in sorted((there[section].keys() | wanted[section].keys()) - IRRELEVANT)
        if there[section].get(key) != wanted[section].get(key)
    ]
    if differences:
        raise RunError(
            f"{folder.path} holds another run: {'; '.join(differences)}. Choose another --out"
        )
