"""Load and check the public data that a configuration names."""

from collections.abc import Sequence

from torch import Tensor

from fedgh.config import Config
from fedgh.data.fetch import OFFICIAL, find
from fedgh.data.public import (
    HELD_OUT,
    NO_ROWS,
    NOISE,
    PublicData,
    check_classes,
    draw,
    hold_out,
    noise,
    publish,
)
from fedgh.data.sources import SEPARATE, SOURCES, DataLocation, Source
from fedgh.errors import ConfigError, MethodError


def check_public_section(config: Config) -> None:
    """Raise ConfigError if the method needs public data that `[public]` does not provide."""
    method, data, public = config.method, config.data, config.public
    if public.name == "none" and method.public_for != "none":
        raise MethodError(
            f"{method.name} needs public data, but public.name = 'none'; for example "
            f"public.name = '{HELD_OUT}' holds some samples out of the data"
        )
    if public.name in (HELD_OUT, NOISE) and data.name in SEPARATE:
        raise ConfigError(
            f"public.name = '{public.name}' follows from data that are partitioned here, but "
            f"data.name = '{data.name}': each client has its own; name another data set"
        )
    if public.name == NOISE and method.public_labels:
        raise MethodError(f"{method.name} reads the labels of public data, but noise has none")
    named_by_path = data.path is not None and data.path != public.path
    if public.name == data.name and data.name not in SEPARATE and not named_by_path:
        raise ConfigError(
            f"public.name = '{public.name}' is the private data set itself; public.name = "
            f"'{HELD_OUT}' holds samples out of it"
        )


def held_out_rows(config: Config, source: Source) -> Tensor:
    """Return the rows of the data that are public, so that no client gets them."""
    if config.public.name != HELD_OUT:
        return NO_ROWS
    return hold_out(source, config.public.samples, config.federation.seed)


def load_public(
    config: Config,
    sources: Sequence[Source],
    *,
    held: Tensor = NO_ROWS,
    given: Source | None = None,
) -> PublicData | None:
    """Return the public data; None if the configuration names none or the method needs none.

    Held-out rows are removed from the private data also if the method does not use them: then all
    methods train on the same private samples. `given` replaces the data set that the configuration
    names.
    """
    public, labels, source = config.public, config.method.public_labels, sources[0]
    if public.name == HELD_OUT:
        return publish(source, held, HELD_OUT, labels=labels)
    if public.name == "none" or config.method.public_for == "none":
        return None
    if given is not None:
        public_source = given
    elif public.name == NOISE:
        public_source = noise(source, public.samples, config.federation.seed)
    else:
        public_source = SOURCES[public.name](_location(config))
    if labels:
        check_classes(public_source, source.class_names)
    rows = draw(public_source, public.samples, config.federation.seed, private=sources)
    return publish(public_source, rows, public.name, labels=labels)


def missing_data_set(config: Config) -> str | None:
    """Return the name of a data set that must be downloaded first; None if all are here."""
    needed = [(config.data.name, config.data.dir)]
    if config.method.public_for != "none":
        needed.append((config.public.name, _location(config).dir))
    missing = (name for name, folder in needed if name in OFFICIAL and find(name, folder) is None)
    return next(missing, None)


def _location(config: Config) -> DataLocation:
    public, data = config.public, config.data
    return DataLocation(public.dir or data.dir, public.path, data.image_size, section="public")
