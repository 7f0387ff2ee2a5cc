"""The public data that a configuration names, found and checked."""

from collections.abc import Sequence

from torch import Tensor

from fedgh.config import Config
from fedgh.data.fetch import OFFICIAL, find
from fedgh.data.public import (
    HELD_OUT,
    NO_ROWS,
    PublicData,
    check_classes,
    draw,
    hold_out,
    publish,
)
from fedgh.data.sources import SEPARATE, SOURCES, Source, Where
from fedgh.errors import ConfigError, MethodError


def check_named(config: Config) -> None:
    """Refuse a section that names no public data where they are needed, or impossible ones."""
    method, data, public = config.method, config.data, config.public
    if public.name == "none" and method.public_for != "none":
        raise MethodError(
            f"{method.name} needs public data, but public.name = 'none'; for example "
            f"public.name = '{HELD_OUT}' takes some out of the data"
        )
    if public.name == HELD_OUT and data.name in SEPARATE:
        raise ConfigError(
            f"public.name = '{HELD_OUT}' takes samples out of data that are dealt here, but "
            f"data.name = '{data.name}': participants have their own; name another data set"
        )
    named_by_path = data.path is not None and data.path != public.path
    if public.name == data.name and data.name not in SEPARATE and not named_by_path:
        raise ConfigError(
            f"public.name = '{public.name}' are the private data themselves; public.name = "
            f"'{HELD_OUT}' takes samples out of them"
        )


def held_out_rows(config: Config, source: Source) -> Tensor:
    """Return the rows of the data that are public and therefore no client's."""
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
    """Return the public data beside those of the clients; None when none are named or needed.

    Rows that are held out are there for any method: all are dealt the same private samples.
    `given` stands in for what the configuration names.
    """
    public, labels, source = config.public, config.method.public_labels, sources[0]
    if public.name == HELD_OUT:
        return publish(source, held, HELD_OUT, labels=labels)
    if public.name == "none" or config.method.public_for == "none":
        return None
    found = SOURCES[public.name](_where(config)) if given is None else given
    if labels:
        check_classes(found, source.class_names)
    rows = draw(found, public.samples, config.federation.seed, private=sources)
    return publish(found, rows, public.name, labels=labels)


def not_here(config: Config) -> str | None:
    """Return the name of a data set that would have to be fetched first; None if all are here."""
    places = [(config.data.name, config.data.dir)]
    if config.method.public_for != "none":
        places.append((config.public.name, _where(config).dir))
    missing = (name for name, place in places if name in OFFICIAL and find(name, place) is None)
    return next(missing, None)


def _where(config: Config) -> Where:
    public, data = config.public, config.data
    return Where(public.dir or data.dir, public.path, data.image_size, section="public")
