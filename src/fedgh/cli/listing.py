"""Commands about names and data sets: `fedgh list`, `fedgh data fetch`."""

from dataclasses import fields
from typing import Annotated

import typer
from rich.console import Console

from fedgh.choices import Kind
from fedgh.cli.options import DataDir
from fedgh.defaults import IMAGE_SIZE, REP_DIM
from fedgh.errors import ConfigError


def list_(kind: Annotated[Kind, typer.Argument(help="Kind of the names to list.")]) -> None:
    """List the names that an experiment or a command accepts, each with a description."""
    from fedgh.report.terminal import listing

    Console().print(listing(descriptions(kind)))


def descriptions(kind: Kind) -> dict[str, str]:
    """Return all names of a kind, each with a one-line description."""
    from fedgh import config
    from fedgh.core.types import Task
    from fedgh.data.sources import SOURCES
    from fedgh.methods import METHODS, plugins
    from fedgh.models import EXTRACTORS, split_model
    from fedgh.studies.study import studies

    if kind == "methods":
        built_in = {
            name: ", ".join(f"{f.name} = {f.default}" for f in fields(method)) or "no settings"
            for name, method in METHODS.items()
        }
        return built_in | {name: f"plug-in: {entry.value}" for name, entry in plugins().items()}
    if kind == "models":
        patterns = {
            "cnn1@1/2": "half the units in each hidden layer; any fraction is allowed",
            "package.module:function": "your own: (input shape, rep_dim) -> torch.nn.Module",
        }
        shape = (3, IMAGE_SIZE, IMAGE_SIZE)
        task = Task(10, REP_DIM, num_clients=1, rounds=1, seed=0, input_shape=shape)
        sizes = {
            name: sum(p.numel() for p in split_model(make, task).parameters())
            for name, make in EXTRACTORS.items()
        }
        note = "parameters for 3x32x32 images, 10 classes"
        return {**{name: f"{size:>10,} {note}" for name, size in sizes.items()}, **patterns}
    if kind == "datasets":
        return {name: (s.__doc__ or "").splitlines()[0] for name, s in SOURCES.items()}
    if kind == "studies":
        return {name: f"{study.title} ({study.source})" for name, study in studies().items()}
    return config.experiments()


def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10, cifar100 or fashion-mnist.")
    ],
    data_dir: DataDir = None,
) -> None:
    """Download a public data set and verify its checksum."""
    from fedgh.data.fetch import OFFICIAL, locate
    from fedgh.errors import unknown
    from fedgh.report.terminal import DownloadBar, say

    if name not in OFFICIAL:
        raise ConfigError(unknown("data set to fetch", name, OFFICIAL))
    console = Console()
    folder = locate(name, data_dir, progress=DownloadBar(console, name))
    say(console, f"{name} is in {folder}")
