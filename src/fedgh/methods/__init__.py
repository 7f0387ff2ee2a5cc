"""The methods, one file each. A new one is a file beside these and a line below.

Methods of other packages are found by their entry points in the group `fedgh.methods`. They are
imported when a configuration that is trusted names them, and never before.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from fedgh.core.method import Method
from fedgh.errors import ConfigError, import_object, unknown
from fedgh.methods.fd import FD
from fedgh.methods.fedavg import FedAvg
from fedgh.methods.fedgen import FedGen
from fedgh.methods.fedgh import FedGH
from fedgh.methods.fedgh_plus import FedGHPlus
from fedgh.methods.fedkd import FedKD
from fedgh.methods.fedmrl import FedMRL
from fedgh.methods.fedproto import FedProto
from fedgh.methods.fedtgp import FedTGP
from fedgh.methods.fml import FML
from fedgh.methods.lg_fedavg import LGFedAvg
from fedgh.methods.standalone import Standalone

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Standalone,
        FedAvg,
        FML,
        FedKD,
        FedMRL,
        LGFedAvg,
        FD,
        FedGen,
        FedProto,
        FedTGP,
        FedGH,
        FedGHPlus,
    )
}
"""The methods of the package."""

ENTRY_POINTS = "fedgh.methods"


_NAMES: dict[type[Method], str] = {}
"""Plug-ins that were imported, and the names by which they were found."""


@cache
def plugins() -> Mapping[str, EntryPoint]:
    """Return the methods of other installed packages by name.

    A built-in name is never replaced, and one that two packages claim is neither's.
    """
    found = [entry for entry in entry_points(group=ENTRY_POINTS) if entry.name not in METHODS]
    places = {name: {e.value for e in found if e.name == name} for name in {e.name for e in found}}
    return {entry.name: entry for entry in found if len(places[entry.name]) == 1}


def find_method(name: str) -> type[Method]:
    """Return the method of that name: built in, a plug-in's, or the class `package.module:Class`.

    Imports what is not built in. Raises ConfigError for a name that is no method's.
    """
    if name in METHODS:
        return METHODS[name]
    if name not in plugins() and ":" not in name:
        raise ConfigError(unknown("method", name, [*METHODS, *plugins()]))
    found = import_object(plugins()[name].value if name in plugins() else name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"'{name}' is not a subclass of fedgh.Method")
    lacks = [*sorted(found.__abstractmethods__)]
    lacks += [each for each in ("up", "down") if not hasattr(found, each)]
    if lacks:
        raise ConfigError(f"'{name}' does not define {', '.join(lacks)}")
    if name in plugins():
        _NAMES[found] = name
    return found


def name_of(method: Method) -> str:
    """Return the name by which a configuration names a method."""
    kind = type(method)
    if METHODS.get(kind.name) is kind:
        return kind.name
    return _NAMES.get(kind, f"{kind.__module__}:{kind.__qualname__}")
