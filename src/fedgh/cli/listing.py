"""Commands about names and data sets: `fedgh list`, `fedgh data fetch`."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedgh.choices import Kind
from fedgh.cli.options import DataDir
from fedgh.defaults import IMAGE_SIZE, REP_DIM
from fedgh.errors import ConfigError

if TYPE_CHECKING:
    from fedgh.methods.overview import MethodFacts


def list_(
    kind: Annotated[Kind, typer.Argument(help="Kind of the names to list.")],
    different_networks: Annotated[
        bool,
        typer.Option("--different-networks", help="Methods whose clients may have any networks."),
    ] = False,
    private: Annotated[
        bool,
        typer.Option("--private", help="Methods that differential privacy can be applied to."),
    ] = False,
    no_public_data: Annotated[
        bool, typer.Option("--no-public-data", help="Methods that need no public data.")
    ] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show the settings of each method.")
    ] = False,
) -> None:
    """List the names that an experiment or a command accepts, each with a description."""
    from fedgh.report.terminal import listing

    console = Console()
    if kind != "methods":
        if different_networks or private or no_public_data or settings:
            raise ConfigError(f"the options of `fedgh list` are for methods, not for {kind}")
        console.print(listing(descriptions(kind)))
        return
    from fedgh.methods import plugins
    from fedgh.methods.overview import built_in_methods

    families = built_in_methods(
        different_networks=different_networks, private=private, no_public_data=no_public_data
    )
    for family, members in families.items():
        console.print(family, style="underline")
        rows = {facts.name: _settings(facts) if settings else facts.about for facts in members}
        console.print(listing(rows))
    if plugins():
        filtered = different_networks or private or no_public_data
        # A plug-in is not imported here, so nothing is known about it.
        console.print("plug-ins (not filtered)" if filtered else "plug-ins", style="underline")
        console.print(listing({name: entry.value for name, entry in plugins().items()}))


def _settings(facts: "MethodFacts") -> str:
    return ", ".join(f"{key} = {value}" for key, value in facts.settings.items()) or "no settings"


def descriptions(kind: Kind) -> dict[str, str]:
    """Return all names of a kind other than methods, each with a one-line description."""
    from fedgh import config
    from fedgh.core.types import Task
    from fedgh.data.sources import SOURCES
    from fedgh.models import EXTRACTORS, split_model
    from fedgh.studies.study import studies

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
