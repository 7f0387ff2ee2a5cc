"""The configuration of an experiment: read from TOML, validated, written as TOML."""

import json
import re
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
from fedgh.core.method import Method, NetworkNames
from fedgh.core.names import Names
from fedgh.core.types import GlobalRounds, LocalTraining, NameList
from fedgh.data.fetch import expanded
from fedgh.data.public import KNOWN_NAMES
from fedgh.data.published import Published
from fedgh.data.sources import SOURCES
from fedgh.defaults import EXTRACTOR_NAMES, IMAGE_SIZE, REP_DIM
from fedgh.errors import ConfigError, unknown
from fedgh.files import read_bytes
from fedgh.limits import LimitError, Limits
from fedgh.methods import METHODS, find_method, name_of, plugins
from fedgh.privacy.mechanism import MIN_DELTA
from fedgh.renames import SETTINGS, with_current_names
from fedgh.secure.terms import MIN_CLIENTS
from fedgh.trust import OWN, ForeignError, Trust, texts_in

DEFAULT_METHOD = "fedgh"

NOT_TOML = (ValueError, RecursionError)
"""Errors of tomllib: its own, and Python's for too many digits or nested brackets."""

MAX_CONFIG = 2**20
"""Bytes of a configuration file; ten thousand class names take a fifth of that."""

MAX_DOTS = 5000
"""Dots in a line. The time of tomllib for a dotted key is quadratic in its parts: half a second for
this many."""

LOCATIONS = (
    *("data.dir", "data.path", "public.dir", "public.path"),
    *("run.address", "run.callbacks"),
)
"""Settings that name files, machines and callbacks; they do not change what is computed."""

NEW_LOCAL_KEYS = ("optimizer", "schedule", "schedule_rounds", "schedule_factor")
"""Keys of `[local]` that early runs do not have: their defaults are left out of fingerprints."""

NEW_METHOD_KEYS: dict[str, dict[str, object]] = {
    "fedproto": {"predict": "header"},
    "fedkd": {"weight_constant": True},
}
"""Settings of methods that early runs do not have, with their defaults."""


# Types of text fields, each with the kind of thing that its text names (see `core.names`).
PlainText = Annotated[str, Names.NOTHING]
TextList = Annotated[NameList, Names.NOTHING]
FilePath = Annotated[Path, Names.PATH]
MachineName = Annotated[str, Names.MACHINE]
CallbackNames = Annotated[NameList, Names.CALLBACK]


class _SectionModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FederationSection(_SectionModel):
    """The number of clients and rounds, and the seed."""

    clients: int = Field(10, ge=1)  # number of clients in the federation
    rounds: int = Field(10, ge=1, lt=2**31)  # number of rounds
    participation: float = Field(1.0, gt=0, le=1)  # share of the clients selected in each round
    seed: int = Field(0, ge=0, lt=2**63)  # seed of all random numbers: partition, weights, batches
    target: float | None = Field(None, gt=0, le=1)  # accuracy; reports show the cost to reach it


class DataSection(_SectionModel):
    """The data set, and its partition among the clients."""

    name: PlainText = "digits"  # one of `fedgh list datasets`
    dir: FilePath | None = None  # folder of official files; default: $FEDGH_DATA, else user cache
    path: FilePath | None = None  # your own file (npz) or folder (image-folder)
    image_size: int = Field(IMAGE_SIZE, ge=1)  # pixels per side that images are scaled to
    partition: Literal["classes", "dirichlet", "iid"] = "classes"  # assignment of samples
    classes_per_client: int = Field(2, ge=1)  # for "classes": number of classes of each client
    alpha: float = Field(0.5, gt=0)  # for "dirichlet": parameter; smaller is more uneven
    samples: int | None = Field(None, ge=3)  # of training and validation per client; default: all
    classes: TextList | None = None  # for "private": the names of all classes
    shape: list[int] | None = None  # for "private": shape of one input, if a method sends a network


class PublicSection(_SectionModel):
    """Public data, for methods that need them; see `data.public`."""

    name: PlainText = "none"  # "held-out", "noise", or one of `fedgh list datasets`
    samples: int = Field(1000, ge=2)  # number of public samples; batch normalisation needs two
    dir: FilePath | None = None  # folder of official files; default: as for `data.dir`
    path: FilePath | None = None  # your own file (npz) or folder (image-folder)


class ModelSection(_SectionModel):
    """The extractors of the clients, and the width of their representations."""

    extractors: NetworkNames = list(EXTRACTOR_NAMES)  # assigned in turn
    rep_dim: int = Field(REP_DIM, ge=1)  # width: numbers in a representation


class PrivacySection(_SectionModel):
    """Differential privacy of uploads; see `privacy.mechanism`."""

    protects: Protected = "nothing"  # what the noise hides: one sample, one client, or nothing
    epsilon: float = Field(8.0, gt=0, le=1000)  # ε of a client that takes part in every round
    delta: float = Field(1e-5, ge=MIN_DELTA, lt=1)  # probability with which ε may not hold
    clip: float = Field(10.0, gt=0)  # longer vectors of samples are scaled down to this L2 norm
    counts: Literal["public", "secret"] = "public"  # "secret" hides the samples per class


class SecureSection(_SectionModel):
    """Secure aggregation: the server learns sums of uploads only; see `secure`."""

    enabled: bool = False  # clients mask their uploads; for methods that need only sums
    min_clients: int = Field(MIN_CLIENTS, ge=MIN_CLIENTS)  # fewest clients of a sum
    fraction_bits: int = Field(24, ge=1, le=40)  # numbers are rounded to steps of 2**-fraction_bits


class RunSection(_SectionModel):
    """Settings of execution, evaluation and storage; they do not change what honest clients learn.

    There are exceptions. Another device rounds differently and draws its own dropout masks. With
    `strikes` and `max_norm` the server rejects uploads and excludes clients, and a client that
    misses the `deadline` fails in that round.
    """

    engine: EngineName = "workers"  # where clients run
    workers: int = Field(0, ge=0)  # number of processes; 0 = one per core, or per GPU
    address: MachineName = "local"  # of a Ray cluster; "auto" = the one of this machine
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu"  # device of the clients' networks
    memory: float = Field(4.0, gt=0)  # GiB of clients in memory; the others are in files
    eval_every: int = Field(1, ge=1)  # rounds between evaluations; the last round is evaluated
    evaluate: Literal["all", "trained"] = "all"  # mean over all clients, or those that trained
    checkpoint_every: int = Field(1, ge=1)  # rounds between checkpoints
    quorum: float = Field(0.0, ge=0, le=1)  # share of uploads that a round needs
    strikes: int = Field(3, ge=0)  # rejected uploads after which a client is excluded; 0 = never
    max_norm: float = Field(1000.0, gt=0)  # largest L2 norm of a row in uploads and downloads
    deadline: float = Field(600.0, gt=0)  # seconds for a round of a client on another machine
    secure_deadline: float = Field(60.0, gt=0)  # seconds for each other message of `[secure]`
    global_accuracy: GlobalRounds = "last"  # evaluated rounds that measure it
    callbacks: CallbackNames = []  # tensorboard, wandb, mlflow, or your own: package.module:name


class _Sections(_SectionModel):
    federation: FederationSection = FederationSection()
    data: DataSection = DataSection()
    public: PublicSection = PublicSection()
    model: ModelSection = ModelSection()
    local: LocalTraining = LocalTraining()
    privacy: PrivacySection = PrivacySection()
    secure: SecureSection = SecureSection()
    defence: Defence = Defence()
    attack: Attack = Attack()
    published: Published = Published()
    run: RunSection = RunSection()


class Config(_Sections):
    """A complete configuration: the sections that all methods share, and the method."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    method: Method = METHODS[DEFAULT_METHOD]()

    def to_table(self) -> dict[str, Any]:
        """Return plain values by section and key; keys without a value are left out."""
        sections = self.model_dump(mode="json", exclude={"method"}, exclude_none=True)
        return {**sections, "method": {"name": self.method_name, **asdict(self.method)}}

    @property
    def method_name(self) -> str:
        """The value of `method.name`."""
        return name_of(self.method)

    def portable(self) -> dict[str, Any]:
        """Return the settings that determine the result, without those of one machine.

        Left out are `[run]`, locations of files, and sections that are not used, since their
        settings change nothing.
        """
        table = self.to_table()
        del table["run"]
        used = {
            "public": self.public.name != "none",
            "privacy": self.privacy.protects != "nothing",
            "secure": self.secure.enabled,
            "defence": self.defence.used,
            "attack": self.attack.clients > 0,
            "published": self.published != Published(),
        }
        for section in (name for name, is_used in used.items() if not is_used):
            del table[section]
        for setting in LOCATIONS:
            section, _, key = setting.partition(".")
            table.get(section, {}).pop(key, None)
        defaults = asdict(LocalTraining())
        for key in NEW_LOCAL_KEYS:
            if table["local"][key] == defaults[key]:
                del table["local"][key]
        for key, value in NEW_METHOD_KEYS.get(self.method.name, {}).items():
            if table["method"].get(key) == value:
                del table["method"][key]
        return table

    def hashed(self) -> dict[str, Any]:
        """Return `portable` with renamed keys under their first names, for fingerprints.

        A renamed key does not change what a run computes.
        """
        table = self.portable()
        table["model"]["zoo"] = table["model"].pop("extractors")
        return table

    def to_toml(self) -> str:
        """Return TOML from which `parse` makes the same configuration."""
        return tomli_w.dumps(self.to_table())


def parse(table: Mapping[str, Any], trust: Trust = OWN) -> Config:
    """Return a configuration from plain values.

    Raise ConfigError with a line for each mistake, and the nearest valid key. Code and files that
    the values name are imported, and later opened, only as far as `trust` allows.
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
            text = unknown("data set", sections.public.name, KNOWN_NAMES)
            problems.append(f"public.name: {text}")
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
    """Warn about keys that were renamed."""
    given = {text.partition("=")[0].strip() for text in overrides}
    for old, new in SETTINGS.items():
        section, _, key = old.partition(".")
        values = table.get(section)
        if old in given or (isinstance(values, dict) and key in values):
            warnings.warn(f"{old} was renamed to {new}; change it", FutureWarning, stacklevel=3)


def load(
    experiment: str | Path | Config, overrides: Iterable[str] = (), data_dir: Path | None = None
) -> Config:
    """Load the user's own experiment, by name or from a TOML file, with overrides.

    An override is `section.key=value`.
    """
    folder = [("data", "dir", str(data_dir))] if data_dir is not None else []
    table = experiment.to_table() if isinstance(experiment, Config) else _read(experiment)
    overrides = list(overrides)
    _warn_of_old_names(table, overrides)
    return _with_overrides(table, [*map(_parse_override, overrides), *folder], OWN)


def load_run(
    path: Path, overrides: Iterable[str] = (), *, trust: Trust, ignoring: Iterable[str] = ()
) -> Config:
    """Load the configuration of a run folder, which may come from a remote party.

    The keys (`section.key`) in `ignoring` have their defaults, whatever the file contains.
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


METHOD_LIMITS = {
    "feature_dim": "max_feature_dim",
    **dict.fromkeys(("per_round", "digest_batch", "public_batch"), "max_public"),
    # Sides of matrices:
    **dict.fromkeys(("hidden", "noise", "shared_dim", "samples", "per_step"), "max_rep_dim"),
}
"""Limits of methods' settings by name; a setting that ends in `_epochs` has `max_epochs`."""


def check_limits(config: Config, limits: Limits) -> None:
    """Raise LimitError if a configuration exceeds the limits."""
    limits.check("federation.clients", config.federation.clients, "max_clients")
    if config.public.name != "none":
        limits.check("public.samples", config.public.samples, "max_public")
    limits.check("data.classes", len(config.data.classes or ()), "max_classes")
    limits.check("model.extractors", len(config.model.extractors), "max_networks")
    limits.check("model.rep_dim", config.model.rep_dim, "max_rep_dim")
    limits.check("data.image_size", config.data.image_size, "max_image_size")
    limits.check("local.epochs", config.local.epochs, "max_epochs")
    for setting in fields(config.method):
        key, value = f"method.{setting.name}", getattr(config.method, setting.name)
        if setting.name.endswith("_epochs"):
            limits.check(key, value, "max_epochs")
        elif setting.name in METHOD_LIMITS:
            limits.check(key, value, METHOD_LIMITS[setting.name])
        elif isinstance(value, list):
            limits.check(key, len(value), "max_networks")
    limits.check_shape("data.shape", tuple(config.data.shape or ()))


def names_in(config: Config) -> Trust:
    """Return trust in the names of this configuration, and in no other from outside fedgh.

    It has no limits on sizes: it is for comparing settings, and nothing is created from them.
    """
    return Trust(names=texts_in(config) | {config.method_name}, limits=None)


def _with_overrides(
    table: dict[str, Any], overrides: list[tuple[str, str, Any]], trust: Trust
) -> Config:
    table = _with_current_names(table)
    # The method's name comes first, because another method has other fields.
    for section, name, value in sorted(overrides, key=lambda item: item[:2] != ("method", "name")):
        _override(table, section, name, value)
    config = parse(table, trust)
    sections = {"data": _absolute(config.data), "public": _absolute(config.public)}
    return config.model_copy(update=sections)


def _absolute(section: DataSection | PublicSection) -> DataSection | PublicSection:
    """Return the section with absolute paths, so that a run can be resumed from any folder."""
    paths = {"dir": section.dir, "path": section.path}
    return section.model_copy(
        update={key: path and expanded(path).absolute() for key, path in paths.items()}
    )


def experiments() -> dict[str, str]:
    """Return the named experiments of the package, each with the first line of its file."""
    folder = resources.files("fedgh") / "experiments"
    texts = {
        item.name.removesuffix(".toml"): item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".toml")
    }
    return {
        name: texts[name].splitlines()[0].lstrip("# ") if texts[name] else ""
        for name in sorted(texts, key=lambda name: (name != "demo", name))
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
    """Read an untrusted TOML file; return its tables. Raise ConfigError if it is not valid."""
    return parse_toml(config_text(path, follow=follow), path)


def config_text(path: Path, *, follow: bool = False) -> str:
    """Return the text of a configuration file; `follow` allows a symbolic link.

    Raise ConfigError if it cannot be read.
    """
    try:
        return read_bytes(path, MAX_CONFIG, follow=follow).decode()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); check its permissions, or "
            "restore it from a copy"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of the file `path`; return its tables. Raise ConfigError if it is invalid."""
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
        return section, name, value.strip()  # a word without quotes is a string


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
    """Return JSON: for it, pydantic's strict mode accepts a table as a section, but no "5" as 5."""
    try:
        return json.dumps(table, default=str)
    except RecursionError:
        raise ConfigError(
            "tables are nested too deeply; a configuration has only sections and keys"
        ) from None
    except ValueError as error:  # a whole number of thousands of digits, written in base 16
        raise ConfigError(f"a number is too large: {error}") from None


def _explain(error: ValidationError, model: Any, prefix: tuple[str, ...] = ()) -> list[str]:
    """Return a line for each mistake: the key, what is wrong, and the nearest valid name."""
    lines = []
    for item in error.errors(include_url=False):
        loc = [*prefix, *(str(part) for part in item["loc"])]
        where = ".".join(loc)
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            kind = "section" if len(loc) == 1 else "key"
            lines.append(f"{where}: {unknown(kind, loc[-1], _keys(model, item['loc'][:-1]))}")
        else:
            message = re.sub("^(Input|List|Value) should", "should", item["msg"])
            message = message.removesuffix(" after validation, not 0")
            lines.append(f"{where}: {message}, got {item['input']!r}")
    return lines


def _keys(model: Any, loc: tuple[int | str, ...]) -> list[str]:
    """Return the valid keys of the section at `loc`."""
    for part in loc:
        model = model.model_fields[part].annotation
    if hasattr(model, "model_fields"):
        return list(model.model_fields)
    return [field.name for field in fields(model)]
