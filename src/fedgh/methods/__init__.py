"""The methods, one file each. A new method needs a file in this package and a line below.

Methods of other packages are found by their entry points in the group `fedgh.methods`. They are
imported only when a trusted configuration names them.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from fedgh.core.method import Method
from fedgh.errors import ConfigError, import_object, unknown
from fedgh.methods.cfd import CFD
from fedgh.methods.cronus import Cronus
from fedgh.methods.dsfl import DSFL
from fedgh.methods.fccl import FCCL
from fedgh.methods.fd import FD
from fedgh.methods.fedalt import FedAlt
from fedgh.methods.fedavg import FedAvg
from fedgh.methods.fedbabu import FedBABU
from fedgh.methods.fedclassavg import FedClassAvg
from fedgh.methods.feddf import FedDF
from fedgh.methods.fedet import FedET
from fedgh.methods.fedgems import FedGEMS
from fedgh.methods.fedgen import FedGen
from fedgh.methods.fedgh import FedGH
from fedgh.methods.fedgh_plus import FedGHPlus
from fedgh.methods.fedgkt import FedGKT
from fedgh.methods.fedhenn import FedHeNN
from fedgh.methods.fedkd import FedKD
from fedgh.methods.fedkemf import FedKEMF
from fedgh.methods.fedmd import FedMD
from fedgh.methods.fedmrl import FedMRL
from fedgh.methods.fedper import FedPer
from fedgh.methods.fedproto import FedProto
from fedgh.methods.fedrep import FedRep
from fedgh.methods.fedrolex import FedRolex
from fedgh.methods.fedtgp import FedTGP
from fedgh.methods.fedzkt import FedZKT
from fedgh.methods.fjord import FjORD
from fedgh.methods.fml import FML
from fedgh.methods.heterofl import HeteroFL
from fedgh.methods.hfd import HFD
from fedgh.methods.lg_fedavg import LGFedAvg
from fedgh.methods.standalone import Standalone

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Standalone,
        FedAvg,
        FedPer,
        FedRep,
        FedBABU,
        FedAlt,
        FML,
        FedKD,
        FedMRL,
        LGFedAvg,
        FedClassAvg,
        FD,
        HFD,
        FedGKT,
        FedZKT,
        FedGen,
        FedProto,
        FedTGP,
        FedGH,
        FedGHPlus,
        HeteroFL,
        FedRolex,
        FjORD,
        FedMD,
        DSFL,
        Cronus,
        CFD,
        FedHeNN,
        FedGEMS,
        FCCL,
        FedDF,
        FedET,
        FedKEMF,
    )
}
"""The methods of the package."""

ENTRY_POINTS = "fedgh.methods"


_NAMES: dict[type[Method], str] = {}
"""Imported plug-ins, with the names of their entry points."""


@cache
def plugins() -> Mapping[str, EntryPoint]:
    """Return the methods of other installed packages by name.

    Names of built-in methods, and names that two packages use, are ignored.
    """
    entries = [entry for entry in entry_points(group=ENTRY_POINTS) if entry.name not in METHODS]
    targets: dict[str, set[str]] = {}
    for entry in entries:
        targets.setdefault(entry.name, set()).add(entry.value)
    return {entry.name: entry for entry in entries if len(targets[entry.name]) == 1}


def find_method(name: str) -> type[Method]:
    """Return the method of a name: built in, of a plug-in, or `package.module:Class`.

    Methods that are not built in are imported. Raise ConfigError if there is no such method.
    """
    if name in METHODS:
        return METHODS[name]
    if name not in plugins() and ":" not in name:
        raise ConfigError(unknown("method", name, [*METHODS, *plugins()]))
    method = import_object(plugins()[name].value if name in plugins() else name)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"'{name}' is not a subclass of fedgh.Method")
    missing = [*sorted(method.__abstractmethods__)]
    missing += [each for each in ("up", "down") if not hasattr(method, each)]
    if missing:
        raise ConfigError(f"'{name}' does not define {', '.join(missing)}")
    if name in plugins():
        _NAMES[method] = name
    return method


def name_of(method: Method) -> str:
    """Return the value of `method.name` for a method."""
    kind = type(method)
    if METHODS.get(kind.name) is kind:
        return kind.name
    return _NAMES.get(kind, f"{kind.__module__}:{kind.__qualname__}")
