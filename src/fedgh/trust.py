"""The one decision which names in a configuration may be followed.

A configuration can name code to import, files to open and machines to connect to. In one that the
user has written they are all meant. One that comes from elsewhere (a run folder, a server) may name
only what is part of fedgh, and what the user has allowed by name, and ask only for what `limits`
allows. `core.names` declares field by field what a text names; a field that declares nothing may
then only have its default.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from pydantic import BaseModel

from fedgh.core.names import Names, declarations
from fedgh.errors import ConfigError, printable
from fedgh.limits import Limits
from fedgh.methods import METHODS
from fedgh.models import is_packaged
from fedgh.models.features import FEATURES

PACKAGED: dict[Names, Callable[[str], bool]] = {
    Names.METHOD: lambda text: text in METHODS,
    Names.NETWORK: is_packaged,
    Names.FEATURES: lambda text: text in FEATURES or is_packaged(text),
    Names.PATH: lambda text: text == "",
    Names.MACHINE: lambda text: text == "local",
    Names.CALLBACK: lambda _: False,  # some of them send numbers to other machines
}
"""Which texts are allowed in any configuration."""


class ForeignError(ConfigError):
    """A configuration from elsewhere names what is not part of fedgh."""

    def __init__(self, setting: str, what: str) -> None:
        super().__init__(
            f"{setting} names {what} outside fedgh, which is used only for runs that you trust: "
            "--trust (in Python: trust=True)"
        )
        self.setting = setting


@dataclass(frozen=True)
class Trust:
    """How far the names in a configuration are followed."""

    everything: bool = False
    names: frozenset[str] = frozenset()  # allowed beside what is part of fedgh
    limits: Limits | None = field(default_factory=Limits)  # None: an experiment of any size

    def check(self, key: str, names: Names | None, text: object) -> None:
        """Raise ForeignError unless what a text names may be imported, opened or reached."""
        if self.everything or names is Names.NOTHING or text is None:
            return
        packaged = names is not None and PACKAGED[names](str(text))
        if not packaged and str(text) not in self.names:
            what = names.value if names else "something"
            raise ForeignError(f"{key} = '{printable(str(text))}'", what)

    def check_all(self, config: BaseModel) -> None:
        """Raise ForeignError unless all names in a configuration may be followed."""
        if self.everything:
            return
        for key, names, text in _texts(config):
            self.check(key, names, text)


OWN = Trust(everything=True, limits=None)
"""The configuration is the user's own."""

FOREIGN = Trust()
"""The configuration comes from elsewhere: only names that are part of fedgh are followed."""


def how_far(trusted: bool) -> Trust:
    """Return the trust in a configuration that the user calls trusted, or does not."""
    return OWN if trusted else FOREIGN


def texts_in(config: BaseModel) -> frozenset[str]:
    """Return every text in a configuration that may name something."""
    return frozenset(str(text) for _, _, text in _texts(config))


def _texts(config: BaseModel) -> Iterator[tuple[str, Names | None, object]]:
    """Every text in a configuration: its key, what it is declared to name, itself."""
    for section in type(config).model_fields:
        holder = getattr(config, section)
        for key, names in declarations(type(holder)).items():
            value = getattr(holder, key)
            if names is None and value == _default(type(holder), key):
                continue
            for text in value if isinstance(value, list | tuple) else [value]:
                yield f"{section}.{key}", names, text


def _default(section: type[Any], name: str) -> object:
    if hasattr(section, "model_fields"):
        return section.model_fields[name].get_default(call_default_factory=True)
    own = next(one for one in fields(section) if one.name == name)
    return own.default if own.default_factory is MISSING else own.default_factory()
