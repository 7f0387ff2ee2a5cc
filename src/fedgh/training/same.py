"""Is the run in a folder the run of this experiment?"""

from fedgh import config as configs
from fedgh.config import PLACES, Config
from fedgh.core.records import FORMAT_VERSION
from fedgh.errors import RunError
from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment
from fedgh.trust import ForeignError

IRRELEVANT = {
    *("engine", "workers", "address", "memory", "checkpoint_every", "deadline", "dir", "path"),
    *("callbacks", "global_accuracy"),  # where that was not measured, tables show a dash
}
"""Settings that change neither what a run learns nor how it is judged on clients' own data."""


def check_same(folder: RunFolder, experiment: Experiment) -> None:
    """Raise RunError for a folder that holds another run, or that was damaged."""
    known = folder.identity().model_copy(
        update={"run": "", "versions": {}, "format_version": FORMAT_VERSION}
    )
    if known.fingerprint != experiment.fingerprint():
        raise RunError(
            f"{folder.path} holds another run: its data, settings, networks or first weights are "
            "not those of now. Put them back (networks made in Python have the same first weights "
            "after torch.manual_seed), or choose another folder"
        )
    if known != experiment.identity() or folder.clients() != experiment.clients():
        raise RunError(
            f"{folder.path}: data.json or clients.json is not as the run wrote it, or clients have "
            "other names; put it back from a copy, or choose another folder"
        )


def check_settings(folder: RunFolder, config: Config) -> None:
    """Raise RunError when the run in a folder, if there is one, has other settings."""
    if not folder.config.exists():
        return
    try:
        found = configs.load_run(folder.config, trust=configs.names_in(config), ignoring=PLACES)
    except ForeignError as error:
        raise RunError(
            f"{folder.path} holds another run: {error.setting}. Choose another --out"
        ) from None
    there, wanted = found.to_table(), config.to_table()
    differences = [
        f"{section}.{key} is {there[section].get(key)} there, {wanted[section].get(key)} asked for"
        for section in wanted
        for key in sorted((there[section].keys() | wanted[section].keys()) - IRRELEVANT)
        if there[section].get(key) != wanted[section].get(key)
    ]
    if differences:
        raise RunError(
            f"{folder.path} holds another run: {'; '.join(differences)}. Choose another --out"
        )
