"""The decision which names in a configuration fedgh follows; it is made only here.

A configuration can name code to import, files to open and machines to connect to. In the user's own
configuration all names are allowed. A configuration from a remote party (in a run folder, from a
server) may name only parts of fedgh and names that the user has allowed, and its values must keep
to `limits`. `core.names` declares for each field what its text names; in a configuration from a
remote party, a field without a declaration must have its default value.
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
    Names.CALLBACK: lambda _: False,  # some callbacks send metrics to other machines
}
"""For each kind of name, the texts that are allowed in every configuration."""


class ForeignError(ConfigError):
    """A configuration from a remote party names something that is not part of fedgh."""

    def __init__(self, setting: str, what: str) -> None:
        super().__init__(
            f"{setting} names {what} outside fedgh, which is used only for runs that you trust: "
            "--trust (in Python: trust=True)"
        )
        self.setting = setting


@dataclass(frozen=True)
class Trust:
    """The names and sizes that are allowed in a configuration."""

    everything: bool = False
    names: frozenset[str] = frozenset()  # allowed in addition to the parts of fedgh
    limits: Limits | None = field(default_factory=Limits)  # None: no limits

    def check(self, key: str, names: Names | None, text: object) -> None:
        """Raise ForeignError unless the text of a field is allowed; `names` is its declaration."""
        if self.everything or names is Names.NOTHING or text is None:
            return
        packaged = names is not None and PACKAGED[names](str(text))
        if not packaged and str(text) not in self.names:
            what = names.value if names else "something"
            raise ForeignError(f"{key} = '{printable(str(text))}'", what)

    def check_all(self, config: BaseModel) -> None:
        """Raise ForeignError unless all names in a configuration are allowed."""
        if self.everything:
            return
        for key, names, text in _texts(config):
            self.check(key, names, text)


OWN = Trust(everything=True, limits=None)
"""Trust in the user's own configuration: everything is allowed."""

FOREIGN = Trust()
"""Trust in a configuration from a remote party: only names of parts of fedgh are allowed."""


def how_far(trusted: bool) -> Trust:
    """Return OWN for a configuration that the user trusts (`--trust`), otherwise FOREIGN."""
    return OWN if trusted else FOREIGN


def texts_in(config: BaseModel) -> frozenset[str]:
    """Return every text in a configuration that may name something."""
    return frozenset(str(text) for _, _, text in _texts(config))


def _texts(config: BaseModel) -> Iterator[tuple[str, Names | None, object]]:
    """Yield every text in a configuration: its key, its declaration (or None) and the text."""
    for name in type(config).model_fields:
        section = getattr(config, name)
        for key, names in declarations(type(section)).items():
            value = getattr(section, key)
            if names is None and value == _default(type(section), key):
                continue
            for text in value if isinstance(value, list | tuple) else [value]:
                yield f"{name}.{key}", names, text


def _default(section: type[Any], key: str) -> object:
    if hasattr(section, "model_fields"):
        return section.model_fields[key].get_default(call_default_factory=True)
    declared = next(candidate for candidate in fields(section) if candidate.name == key)
    return declared.default if declared.default_factory is MISSING else declared.default_factory()
