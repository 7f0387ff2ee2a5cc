"""One model of an experiment: TOML in, TOML out, every mistake named in one line."""

import json
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from fedgh.choices import EngineName, Protected
from fedgh.core.attack import Attack
from fedgh.core.defence import Defence
from fedgh.core.method import Method
from fedgh.core.names import Names
from fedgh.core.types import GlobalRounds, LocalTraining, NameList
from fedgh.data.fetch import expanded
from fedgh.data.public import KNOWN_NAMES
from fedgh.data.sources import SOURCES
from fedgh.defaults import EXTRACTOR_NAMES, IMAGE_SIZE, REP_DIM
from fedgh.errors import ConfigError, unknown
from fedgh.files import read_bytes
from fedgh.limits import LimitError, Limits
from fedgh.methods import METHODS, find_method, name_of, plugins
from fedgh.privacy.mechanism import MIN_DELTA
from fedgh.renames import SETTINGS, with_current_names
from fedgh.trust import OWN, ForeignError, Trust, texts_in

DEFAULT_METHOD = "fedgh"

NOT_TOML = (ValueError, RecursionError)
"""What tomllib raises: its own error, and Python's for too many digits or brackets."""

MAX_CONFIG = 2**20
"""Bytes of a configuration file; ten thousand names of classes take a fifth of that."""

MAX_DOTS = 5000
"""Dots in a line. The time that tomllib takes for a dotted key is quadratic in its parts: half a
second for so many."""

PLACES = (
    *("data.dir", "data.path", "public.dir", "public.path"),
    *("run.address", "run.callbacks"),
)
"""Settings that say where things are and who is told, and not what is computed."""


LATER = ("optimizer", "schedule", "schedule_rounds", "schedule_factor")
"""Keys of `[local]` that the first runs do not have: their defaults stay out of fingerprints."""

LATER_IN_METHODS: dict[str, dict[str, object]] = {
    "fedproto": {"predict": "header"},
    "fedkd": {"weight_constant": True},
}
"""Settings of methods that the first runs do not have, with their defaults."""


# What the text in a field names, see `core.names`.
Word = Annotated[str, Names.NOTHING]
Words = Annotated[NameList, Names.NOTHING]
Networks = Annotated[NameList, Names.NETWORK]
Place = Annotated[Path, Names.PATH]
Machine = Annotated[str, Names.MACHINE]
CallbackNames = Annotated[NameList, Names.CALLBACK]


class _SectionModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FederationSection(_SectionModel):
    """Who takes part, for how long."""

    clients: int = Field(10, ge=1)  # in the whole federation
    rounds: int = Field(10, ge=1, lt=2**31)  # from start to end
    participation: float = Field(1.0, gt=0, le=1)  # share of the clients in each round
    seed: int = Field(0, ge=0, lt=2**63)  # of the partition, weights, batches and all else
    target: float | None = Field(None, gt=0, le=1)  # accuracy whose cost is reported


class DataSection(_SectionModel):
    """Which data, and how they are dealt to the clients."""

    name: Word = "digits"  # one of `fedgh list datasets`
    dir: Place | None = None  # holds the official files; else $FEDGH_DATA, else the user cache
    path: Place | None = None  # your own file (npz) or folder (image-folder)
    image_size: int = Field(IMAGE_SIZE, ge=1)  # what the images of a folder are scaled to
    partition: Literal["classes", "dirichlet", "iid"] = "classes"  # who gets which samples
    classes_per_client: int = Field(2, ge=1)  # for "classes"
    alpha: float = Field(0.5, gt=0)  # for "dirichlet"
    samples: int | None = Field(None, ge=3)  # a client trains on and evaluates with; else all
    classes: Words | None = None  # for "private": the names of all classes
    shape: list[int] | None = None  # for "private": of one input, if a method shares a network


class PublicSection(_SectionModel):
    """Data known beside the private ones, for methods that need some; see `data.public`."""

    name: Word = "none"  # "held-out" takes them out of the data; or one of `fedgh list datasets`
    samples: int = Field(1000, ge=1)  # how many are drawn
    dir: Place | None = None  # holds the official files; else as for `data.dir`
    path: Place | None = None  # your own file (npz) or folder (image-folder)


class ModelSection(_SectionModel):
    """The extractors, dealt round-robin over the clients, and the width they share."""

    extractors: Networks = Field(list(EXTRACTOR_NAMES), min_length=1)  # assigned in turn
    rep_dim: int = Field(REP_DIM, ge=1)  # numbers in a representation


class PrivacySection(_SectionModel):
    """What uploads may tell about a client's samples; see `privacy.mechanism`."""

    protects: Protected = "nothing"  # what is hidden among others
    epsilon: float = Field(8.0, gt=0, le=1000)  # of a client that takes part in every round
    delta: float = Field(1e-5, ge=MIN_DELTA, lt=1)  # the chance with which ε may not hold
    clip: float = Field(10.0, gt=0)  # the largest L2 norm of one sample's vector
    counts: Literal["public", "secret"] = "public"  # the samples of each class, for "sample"


class RunSection(_SectionModel):
    """How it is computed and looked at. Nothing here changes what honest clients learn.

    Another device rounds differently, and draws its own dropout. `strikes` and `max_norm`
    decide who is still listened to, and who misses the `deadline` is not heard.
    """

    engine: EngineName = "workers"  # where the clients run
    workers: int = Field(0, ge=0)  # processes; 0 = one per core, or per graphics card
    address: Machine = "local"  # of a Ray cluster; "auto" = the one this machine belongs to
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu"  # where their models are
    memory: float = Field(4.0, gt=0)  # GiB of clients kept in memory; the others wait in files
    eval_every: int = Field(1, ge=1)  # rounds between evaluations; the last is always evaluated
    evaluate: Literal["all", "trained"] = "all"  # whose mean: all clients, or those that took part
    checkpoint_every: int = Field(1, ge=1)  # rounds between checkpoints
    quorum: float = Field(0.0, ge=0, le=1)  # share of a round's participants that must answer
    strikes: int = Field(3, ge=0)  # rejected uploads after which a client is set aside; 0 = never
    max_norm: float = Field(1000.0, gt=0)  # of a row in what is sent, either way
    deadline: float = Field(600.0, gt=0)  # seconds a participant on another machine may take
    global_accuracy: GlobalRounds = "last"  # evaluated rounds that judge clients on all classes
    callbacks: CallbackNames = []  # tensorboard, wandb, mlflow, or your own: package.module:name


class _Sections(_SectionModel):
    federation: FederationSection = FederationSection()
    data: DataSection = DataSection()
    public: PublicSection = PublicSection()
    model: ModelSection = ModelSection()
    local: LocalTraining = LocalTraining()
    privacy: PrivacySection = PrivacySection()
    defence: Defence = Defence()
    attack: Attack = Attack()
    run: RunSection = RunSection()


class Config(_Sections):
    """A whole experiment: the sections that all methods share, and the method itself."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    method: Method = METHODS[DEFAULT_METHOD]()

    def to_table(self) -> dict[str, Any]:
        """Plain values, section by section; what is None is left out."""
        sections = self.model_dump(mode="json", exclude={"method"}, exclude_none=True)
        return {**sections, "method": {"name": self.method_name, **asdict(self.method)}}

    @property
    def method_name(self) -> str:
        """The name by which a configuration names its method."""
        return name_of(self.method)

    def portable(self) -> dict[str, Any]:
        """The same without what is one machine's affair: how it is run, where files are.

        Sections that are not used are left out: their settings change nothing.
        """
        table = self.to_table()
        del table["run"]
        used = {
            "public": self.public.name != "none",
            "privacy": self.privacy.protects != "nothing",
            "defence": self.defence != Defence(),
            "attack": self.attack.clients > 0,
        }
        for section in (name for name, is_used in used.items() if not is_used):
            del table[section]
        for place in PLACES:
            section, _, key = place.partition(".")
            table.get(section, {}).pop(key, None)
        usual = asdict(LocalTraining())
        for key in LATER:
            if table["local"][key] == usual[key]:
                del table["local"][key]
        # Hashed under its former name: a renamed key does not change what a run computes.
        table["model"]["zoo"] = table["model"].pop("extractors")
        for key, value in LATER_IN_METHODS.get(self.method.name, {}).items():
            if table["method"].get(key) == value:
                del table["method"][key]
        return table

    def to_toml(self) -> str:
        """TOML from which `parse` makes the same experiment."""
        return tomli_w.dumps(self.to_table())


def parse(table: Mapping[str, Any], trust: Trust = OWN) -> Config:
    """An experiment from plain values; ConfigError names each mistake and the nearest key.

    What the values name is imported, and later opened, only as far as `trust` goes.
    """
    table = _with_current_names(table)
    problems: list[str] = []
    try:
        method = _parse_method(table.pop("method", {}), trust)
    except ForeignError:
        raise
    except ConfigError as error:
        problems.append(str(error))
    try:
        sections = _Sections.model_validate_json(_as_json(table))
    except ValidationError as error:
        problems += _explain(error, Config)
    else:
        if sections.data.name not in SOURCES:
            problems.append("data.name: " + unknown("data set", sections.data.name, SOURCES))
        if sections.public.name not in KNOWN_NAMES:
            known = unknown("data set", sections.public.name, KNOWN_NAMES)
            problems.append(f"public.name: {known}")
    if problems:
        raise ConfigError("\n".join(problems))
    config = Config(**dict(sections), method=method)
    trust.check_all(config)
    if trust.limits is not None:
        check_limits(config, trust.limits)
    return config


def _with_current_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which keys of earlier versions have their current names."""
    table = dict(table)
    for old, new in SETTINGS.items():
        section = old.partition(".")[0]
        if isinstance(table.get(section), dict):
            names = {old.partition(".")[2]: new.partition(".")[2]}
            table[section] = with_current_names(table[section], names)
    return table


def _warn_of_old_names(table: Mapping[str, Any], overrides: Iterable[str]) -> None:
    """Warn the user of keys that have another name now."""
    given = {text.partition("=")[0].strip() for text in overrides}
    for old, new in SETTINGS.items():
        section, _, key = old.partition(".")
        values = table.get(section)
        if old in given or (isinstance(values, dict) and key in values):
            warnings.warn(f"{old} is called {new} now; change it", FutureWarning, stacklevel=3)


def load(
    experiment: str | Path | Config, overrides: Iterable[str] = (), data_dir: Path | None = None
) -> Config:
    """The user's own experiment: a named one or a TOML file, with `section.key=value` overrides."""
    where = [("data", "dir", str(data_dir))] if data_dir is not None else []
    table = experiment.to_table() if isinstance(experiment, Config) else _read(experiment)
    overrides = list(overrides)
    _warn_of_old_names(table, overrides)
    return _with_overrides(table, [*map(_parse_override, overrides), *where], OWN)


def load_run(
    path: Path, overrides: Iterable[str] = (), *, trust: Trust, ignoring: Iterable[str] = ()
) -> Config:
    """The configuration in a run folder, which may come from elsewhere.

    The keys (`section.key`) that are ignored have their defaults, whatever the file says.
    """
    table = _with_current_names(read_toml(path))
    for key in ignoring:
        section, _, name = key.partition(".")
        if isinstance(table.get(section), dict):
            table[section].pop(name, None)
    try:
        return _with_overrides(table, list(map(_parse_override, overrides)), trust)
    except LimitError as error:
        raise LimitError(f"{error}; --trust allows it (in Python: trust=True)") from None


def check_limits(config: Config, limits: Limits) -> None:
    """Raise LimitError when a configuration asks for more than the limits allow."""
    limits.check("federation.clients", config.federation.clients, "max_clients")
    if config.public.name != "none":
        limits.check("public.samples", config.public.samples, "max_public")
    limits.check("data.classes", len(config.data.classes or ()), "max_classes")
    limits.check("model.extractors", len(config.model.extractors), "max_networks")
    limits.check("model.rep_dim", config.model.rep_dim, "max_rep_dim")
    limits.check("data.image_size", config.data.image_size, "max_image_size")
    limits.check("local.epochs", config.local.epochs, "max_epochs")
    width = getattr(config.method, "feature_dim", 0)
    limits.check("method.feature_dim", width, "max_feature_dim")
    for key in ("hidden", "noise"):  # layers that are as wide
        limits.check(f"method.{key}", getattr(config.method, key, 0), "max_rep_dim")
    limits.check_shape("data.shape", tuple(config.data.shape or ()))


def names_in(config: Config) -> Trust:
    """Trust that allows what this configuration names, and nothing else from outside fedgh.

    For a comparison of settings, so of any size: nothing is made of them.
    """
    return Trust(names=texts_in(config) | {config.method_name}, limits=None)


def _with_overrides(
    table: dict[str, Any], overrides: list[tuple[str, str, Any]], trust: Trust
) -> Config:
    table = _with_current_names(table)
    # A method's name first: another method has other fields.
    for section, name, value in sorted(overrides, key=lambda item: item[:2] != ("method", "name")):
        _override(table, section, name, value)
    config = parse(table, trust)
    places = {"data": _absolute(config.data), "public": _absolute(config.public)}
    return config.model_copy(update=places)


def _absolute(section: DataSection | PublicSection) -> DataSection | PublicSection:
    """Return the section with the same places, wherever the run is resumed from."""
    places = {"dir": section.dir, "path": section.path}
    return section.model_copy(
        update={key: place and expanded(place).absolute() for key, place in places.items()}
    )


def experiments() -> dict[str, str]:
    """The named experiments of the package, and the first line of each."""
    folder = resources.files("fedgh") / "experiments"
    found = {
        item.name.removesuffix(".toml"): item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".toml")
    }
    return {
        name: found[name].splitlines()[0].lstrip("# ") if found[name] else ""
        for name in sorted(found, key=lambda name: (name != "demo", name))
    }


def _read(experiment: str | Path) -> dict[str, Any]:
    name = str(experiment)
    if name in experiments():
        text = (resources.files("fedgh") / "experiments" / f"{name}.toml").read_text("utf-8")
        return tomllib.loads(text)
    if not Path(name).is_file():
        raise ConfigError(unknown("experiment or file", name, experiments()))
    return read_toml(Path(name), follow=True)


def read_toml(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """The tables of a TOML file that may come from elsewhere; ConfigError says why not."""
    return parse_toml(config_text(path, follow=follow), path)


def config_text(path: Path, *, follow: bool = False) -> str:
    """The text of a configuration file; `follow` allows a symbolic link."""
    try:
        return read_bytes(path, MAX_CONFIG, follow=follow).decode()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); allow it, or put it back from a copy"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The tables in the text of the file `path`."""
    if sum(line.count(".") ** 2 for line in text.split("\n")) > MAX_DOTS**2:
        raise ConfigError(f"{path}: too many dots in a line; break it into several")
    try:
        return tomllib.loads(text)
    except NOT_TOML as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _parse_override(text: str) -> tuple[str, str, Any]:
    key, equals, value = text.partition("=")
    section, dot, name = SETTINGS.get(key.strip(), key.strip()).partition(".")
    if not (equals and dot and section and name):
        raise ConfigError(f"--set {text}: expected section.key=value, e.g. local.epochs=5")
    try:
        return section, name, tomllib.loads(f"value = {value}")["value"]
    except NOT_TOML:
        return section, name, value.strip()  # a bare word is a string


def _override(table: dict[str, Any], section: str, name: str, value: object) -> None:
    target = table.setdefault(section, {})
    if not isinstance(target, dict):
        raise ConfigError(f"{section}: expected a section, got {target!r}")
    if (section, name) == ("method", "name") and target.get("name", DEFAULT_METHOD) != value:
        target.clear()
    target[name] = value


def _parse_method(table: object, trust: Trust) -> Method:
    if not isinstance(table, dict):
        raise ConfigError(f"method: expected a section, got {table!r}")
    settings = dict(table)
    name = str(settings.pop("name", DEFAULT_METHOD))
    if ":" in name or name in plugins():
        trust.check("method.name", Names.METHOD, name)
    try:
        method = find_method(name)
    except ConfigError as error:
        raise ConfigError(f"method.name: {error}") from None
    try:
        parsed: Method = TypeAdapter(method).validate_json(_as_json(settings))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, method, ("method",)))) from None
    return parsed


def _as_json(table: object) -> str:
    """JSON, where pydantic's strict mode takes a table for a section but no "5" for a 5."""
    try:
        return json.dumps(table, default=str)
    except RecursionError:
        raise ConfigError("tables within tables within tables: there are only sections") from None


def _explain(error: ValidationError, model: Any, prefix: tuple[str, ...] = ()) -> list[str]:
    """One line for each mistake: where, what, and the nearest valid name."""
    lines = []
    for item in error.errors(include_url=False):
        loc = [*prefix, *(str(part) for part in item["loc"])]
        where = ".".join(loc)
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            kind = "section" if len(loc) == 1 else "key"
            lines.append(f"{where}: {unknown(kind, loc[-1], _keys(model, item['loc'][:-1]))}")
        else:
            message = item["msg"].replace("Input should", "should").replace("List should", "should")
            message = message.removesuffix(" after validation, not 0")
            lines.append(f"{where}: {message}, got {item['input']!r}")
    return lines


def _keys(model: Any, loc: tuple[int | str, ...]) -> list[str]:
    """The valid keys of the section at `loc`."""
    for part in loc:
        model = model.model_fields[part].annotation
    if hasattr(model, "model_fields"):
        return list(model.model_fields)
    return [field.name for field in fields(model)]
