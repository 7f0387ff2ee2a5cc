"""Experiments: a configuration with its data loaded and partitioned and its networks found."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgh.config import Config, DataSection
from fedgh.core.groups import check_same_part, clients_with
from fedgh.core.message import Message, Shapes
from fedgh.core.records import ClientInfo, Identity
from fedgh.core.rng import isolated, stream
from fedgh.core.server import ServerResources
from fedgh.core.sums import MAX_SUM, Scale, Summation
from fedgh.core.types import (
    UNKNOWN_SAMPLES,
    Examples,
    GlobalRounds,
    LocalTraining,
    Payload,
    SplitModel,
    Task,
)
from fedgh.data import partition as partitions
from fedgh.data.global_sample import balanced
from fedgh.data.partition import Partition
from fedgh.data.public import HELD_OUT, PublicData, check_disjoint, check_inputs
from fedgh.data.published import (
    Published,
    official_splits,
    published_partition,
    published_splits,
)
from fedgh.data.sources import SEPARATE, SOURCES, DataLocation, Source
from fedgh.engines.device import find_device
from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, MethodError, memory_errors
from fedgh.extras import need
from fedgh.methods import METHODS
from fedgh.models import Extractor, check_extractor, extractor, split_model
from fedgh.privacy.accounting import Account, noise_multiplier
from fedgh.privacy.mechanism import Privacy
from fedgh.secure.terms import MAX_CLIENTS
from fedgh.training.public import check_public_section, held_out_rows, load_public


@dataclass(frozen=True)
class Experiment:
    """A configuration with its data loaded and partitioned, ready to run."""

    config: Config
    sources: tuple[Source, ...]  # one that is partitioned among all clients, or one per client
    partition: Partition
    extractors: tuple[Extractor, ...]
    names: tuple[str, ...] = ()  # of the clients, if they have names
    weights: bytes = b""  # a digest of the initial weights of networks given in Python
    public: PublicData | None = None  # None if the run has none

    @property
    def source(self) -> Source:
        """The data set; the first client's if each client has its own."""
        return self.sources[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; () if clients have inputs of different shapes."""
        shapes = {source.shape for source in self.sources}
        return shapes.pop() if len(shapes) == 1 else ()

    @property
    def task(self) -> Task:
        """The task: the values that the server and all clients know."""
        return Task(
            num_classes=self.source.num_classes,
            rep_dim=self.config.model.rep_dim,
            num_clients=self.config.federation.clients,
            rounds=self.config.federation.rounds,
            seed=self.config.federation.seed,
            input_shape=self.input_shape,
            privacy=self.privacy,
            public_size=self.public_size,
            max_samples=self.max_samples,
            secure=self.config.secure.enabled,
        )

    @property
    def max_samples(self) -> int:
        """The most training samples of a client, or a bound where the data are not here."""
        train = self.partition.bounds[:, 1] - self.partition.bounds[:, 0]
        return int(train.max()) or UNKNOWN_SAMPLES

    @property
    def public_size(self) -> int:
        """The number of public samples that the method uses, also before they are loaded."""
        return 0 if self.config.method.public_for == "none" else self.config.public.samples

    @property
    def shared_public(self) -> PublicData | None:
        """The public data that every client must have; None if clients need none."""
        return self.public if self.config.method.public_for == "all" else None

    @property
    def private(self) -> bool:
        """True if the data are only on the clients' machines."""
        return self.config.data.name == "private"

    @property
    def pooled(self) -> bool:
        """True if this machine has the data of all clients, partitioned from one data set."""
        return self.config.data.name not in SEPARATE and len(self.source) > 0

    @property
    def global_rounds(self) -> GlobalRounds:
        """The rounds that measure global accuracy; "never" unless the data are pooled."""
        return self.config.run.global_accuracy if self.pooled else "never"

    @property
    def privacy(self) -> Privacy | None:
        """The privacy mechanism of uploads; None without privacy, or if the method sends nothing.

        Raise MethodError if the method sends more than the mechanism can protect.
        """
        section, method = self.config.privacy, self.config.method
        if section.protects == "nothing":
            return None
        if method.shares == "more":
            raise MethodError(
                f"{method.name} sends more than class means: privacy.protects = "
                f"'{section.protects}' cannot be guaranteed; choose another method"
            )
        if method.weighs_by_examples and (section.protects, section.counts) != ("sample", "public"):
            raise MethodError(
                f"{method.name} tells the server how many samples clients have: privacy.protects = "
                f"'{section.protects}' with privacy.counts = '{section.counts}' cannot be "
                "guaranteed; choose another method"
            )
        if method.shares == "nothing":
            return None
        releases = 1 if self._one_release else self.config.federation.rounds
        multiplier = noise_multiplier(section.epsilon, section.delta, releases)
        return Privacy(section.protects, section.counts, section.clip, multiplier)

    @property
    def withhold_metrics(self) -> bool:
        """True if clients withhold metrics that neither noise nor masks cover, with any method."""
        return self.config.privacy.protects != "nothing" or self.config.secure.enabled

    @property
    def scale(self) -> Scale | None:
        """The fixed-point numbers of masked uploads; None if uploads are sent as they are."""
        if not self.config.secure.enabled:
            return None
        samples = max(self.max_samples, UNKNOWN_SAMPLES)  # with room for noise on counts
        return Scale(self.config.secure.fraction_bits, self.config.run.max_norm, samples)

    def summation(self) -> Summation | None:
        """Return how the server adds masked uploads up; None if uploads are sent as they are.

        Raise MethodError if the method needs more than sums.
        """
        method, scale = self.config.method, self.scale
        if scale is None:
            return None
        if not method.sums_suffice:
            raise MethodError(
                f"secure.enabled: the server of {method.name} needs each upload, not only their "
                f"sum; methods that need only sums: {', '.join(_summable())}"
            )
        shapes = Shapes(self.task, partial(self.server_resources().network, 0))
        return method.up.summation(method, shapes, scale)

    def account(self) -> Account | None:
        """Return a privacy account with nothing spent yet; None without privacy."""
        privacy = self.privacy
        if privacy is None:
            return None
        section = self.config.privacy
        clients, once = self.config.federation.clients, self._one_release
        return Account(privacy, section.epsilon, section.delta, clients, once=once)

    @property
    def _one_release(self) -> bool:
        """True if a client's data are released once in the whole run."""
        method = self.config.method
        return method.releases_once and method.up.keeps_release

    def initial_server(self) -> Payload:
        """Return the server's state before the first round.

        Raise MethodError if the method cannot work with these clients.
        """
        seed = self.task.seed
        self._check_messages()
        with isolated(seed, "server-models"):
            models = [split_model(make, self.task) for make in self.extractors]
        method = self.config.method
        try:
            check_same_part(method, self.task, models)
            # Layers that the server starts with draw from the global generator.
            with (
                isolated(seed, "init-server"),
                memory_errors(f"the server's state of {method.name}"),
            ):
                return method.init_server(self.task, models, stream(seed, "server"))
        except ConfigError as error:
            raise MethodError(str(error)) from None

    def _check_messages(self) -> None:
        """Raise MethodError if the shapes of messages cannot be determined for these clients."""
        method, resources = self.config.method, self.server_resources()
        for message in (method.up, method.down):
            if not isinstance(message, Message):
                raise MethodError(f"{method.name} declares {message!r}, which is not a Message")
        if not resources.networks and method.own_network_crosses:
            raise MethodError(
                f"{method.name} sends clients' networks: set model.extractors to the network of "
                "all clients, and data.shape to the shape of its inputs"
            )
        count, problems = max(1, len(resources.networks)), dict[str, list[int]]()
        for kind in range(min(count, self.task.num_clients)):
            shapes = Shapes(self.task, partial(resources.network, kind))
            try:
                with memory_errors(f"a network of {method.name}"):
                    method.upload_specs(shapes)
                    method.download_specs(shapes)
            except (ConfigError, AttributeError) as error:  # a missing submodule or field
                problems.setdefault(str(error), []).append(kind)
        for text, kinds in problems.items():
            some = method.own_network_crosses and len(kinds) < count
            where = f", {clients_with(kinds, count, self.task)}" if some else ""
            raise MethodError(f"{method.name}{where}: {text}")

    def server_resources(self) -> ServerResources:
        """Return what the server uses beside its state: networks, public data, a device."""
        return ServerResources(
            networks=tuple(partial(_server_network, make, self.task) for make in self.extractors),
            public=self._public_for_server(),
            device=find_device(self.config.run.device),
        )

    def _public_for_server(self) -> Examples | None:
        if self.public is None or self.config.method.public_for == "none":
            return None
        return self.public.examples()

    def fingerprint(self) -> str:
        """Return a digest that is equal for two experiments if honest clients compute the same."""
        settings = json.dumps(self.config.hashed(), sort_keys=True)
        digest = hashlib.blake2b(settings.encode(), digest_size=16)
        for source in self.sources:
            digest.update(source.digest)
        digest.update(self.weights)
        digest.update(self.public.digest if self.public else b"")
        for tensor in (self.partition.order, self.partition.bounds):
            digest.update(tensor.numpy().data)
        return digest.hexdigest()

    def identity(self) -> Identity:
        """Return the contents of data.json: name, size and classes of the data, fingerprint."""
        return Identity(
            name=self.source.name,
            samples=sum(map(len, self.sources)),
            classes=list(self.source.class_names),
            **(_inputs(self.source) if len(self.sources) == 1 else {}),
            fingerprint=self.fingerprint(),
        )

    def counts(self) -> Tensor:
        """Return the number of samples of each client and class, [clients, classes]."""
        if len(self.sources) == 1:
            labels = self.source.y[self.partition.order]
        else:
            rows = [torch.cat(self.partition.indices(k)) for k in range(len(self.sources))]
            labels = torch.cat([s.y[r] for s, r in zip(self.sources, rows, strict=True)])
        return self.partition.counts(labels, self.source.num_classes)

    def clients(self) -> list[ClientInfo]:
        """Return the contents of clients.json: each client's network, classes and samples."""
        counts = self.counts()
        names, extractors = self.source.class_names, self.config.model.extractors
        return [
            ClientInfo(
                client=client,
                **({"name": self.names[client]} if any(self.names) else {}),
                extractor="private" if self.private else extractors[client % len(extractors)],
                classes={names[label]: count for label, count in enumerate(row) if count},
                **(_inputs(self.sources[client]) if self.config.data.name == "own" else {}),
                **dict(zip(("train", "validation", "test"), sizes, strict=True)),
            )
            for client, (row, sizes) in enumerate(
                zip(counts.tolist(), self.partition.bounds.diff(dim=1).tolist(), strict=True)
            )
        ]

    def blueprint(self) -> Blueprint:
        """Return the description from which an engine makes the clients."""
        sample = None
        if self.global_rounds != "never":
            sample = balanced(self.partition, self.source.y, self.task)
        return Blueprint(
            task=self.task,
            method=self.config.method,
            local=self.config.local,
            extractors=self.extractors,
            sources=self.sources,
            partition=self.partition,
            global_sample=sample,
            device=find_device(self.config.run.device),
            privacy=self.privacy,
            withhold_metrics=self.withhold_metrics,
            max_norm=self.config.run.max_norm,
            attack=self.config.attack,
            public=self.shared_public,
            published=self.config.published,
            scale=self.scale,
        )


def _server_network(make: Extractor, task: Task) -> SplitModel:
    """Make a network like a client's without drawing from the server's random generator."""
    with isolated(task.seed, "server-network"):
        return split_model(make, task)


def _inputs(source: Source) -> dict[str, Any]:
    """Return the shape and dtype of the inputs."""
    return {"shape": list(source.shape), "dtype": str(source.x.dtype).removeprefix("torch.")}


def load_source(data: DataSection) -> Source:
    """Load the data set that a configuration names."""
    classes, shape = tuple(data.classes or ()), tuple(data.shape or ())
    return SOURCES[data.name](DataLocation(data.dir, data.path, data.image_size, classes, shape))


def prepare(
    config: Config, *, source: Source | None = None, extractors: Sequence[Extractor] | None = None
) -> Experiment:
    """Load and partition the data, find the networks, and validate the experiment.

    `source` and `extractors` replace those that the configuration names. Raise FedghError if the
    experiment cannot run.
    """
    check_public_section(config)
    source = source or load_source(config.data)
    if extractors is not None:
        model = config.model.model_copy(update={"extractors": _names(extractors)})
        config = config.model_copy(update={"model": model})
    if extractors is not None:
        networks = tuple(extractors)
    elif config.data.name == "private" and not source.shape:
        networks = ()  # no network is sent, so the server need not know any
    else:
        networks = _find_extractors(config.model.extractors)
    held_out = held_out_rows(config, source)
    public = load_public(config, [source], held=held_out)
    partition = partitioned(config, source, held_out)
    return validated(Experiment(config, (source,), partition, networks, public=public))


def validated(experiment: Experiment) -> Experiment:
    """Return the experiment; raise FedghError if it cannot run, before the first round does."""
    config, sources = experiment.config, experiment.sources
    find_device(config.run.device)
    _check_local(config.local)
    for source in sources:
        check_augment(config.local, source)
    if config.run.global_accuracy == "every" and not experiment.pooled:
        raise ConfigError(
            "run.global_accuracy = 'every' needs the data of all clients on one machine, but "
            f"data.name = '{config.data.name}'; leave it at 'last', which then measures nothing"
        )
    if config.data.samples is not None and config.data.name in SEPARATE:
        raise ConfigError(
            "data.samples applies to data that are partitioned here, but data.name = "
            f"'{config.data.name}'; remove it: each client decides how many samples it uses"
        )
    _check_published(config)
    _check_class_means(config)
    _check_secure(experiment)
    _check_public(experiment)
    for number, make in enumerate(experiment.extractors):
        task = replace(experiment.task, input_shape=sources[number % len(sources)].shape)
        with _about("model.extractors"):
            check_extractor(config.model.extractors[number], make, task)
    experiment.account()
    experiment.initial_server()
    return experiment


def _check_local(local: LocalTraining) -> None:
    """Raise ConfigError for settings of local training that exclude each other."""
    if local.momentum and local.optimizer != "sgd":
        raise ConfigError(
            f"local.momentum = {local.momentum:g} is for local.optimizer = 'sgd', not for "
            f"'{local.optimizer}', which has moments of its own; set it to 0"
        )


def check_augment(local: LocalTraining, source: Source) -> None:
    """Raise ConfigError if inputs that are not images would be augmented."""
    if local.augment and not source.images:
        raise ConfigError(f"local.augment is for images, but inputs have shape {source.shape}")


def _check_public(experiment: Experiment) -> None:
    """Raise ConfigError if the networks cannot take the public data, or some are private too."""
    if experiment.public is not None:
        for source in experiment.sources:
            check_inputs(experiment.public, source)
        check_disjoint(experiment.public, experiment.sources, experiment.partition)


def _check_class_means(config: Config) -> None:
    """Raise MethodError for settings about class means if the method sends none."""
    wanted = {
        "defence.agreement": config.defence.agreement,
        "attack.clients": config.attack.clients,
    }
    for key, value in wanted.items():
        if value and config.method.shares != "class means":
            raise MethodError(
                f"{key} is about class means, which {config.method.name} does not send"
            )


def _check_secure(experiment: Experiment) -> None:
    """Raise ConfigError if uploads cannot be masked with these settings."""
    config, summation = experiment.config, experiment.summation()
    if summation is None:
        return
    need("secure", "secure aggregation")
    section, federation = config.secure, config.federation
    for key, used in {"defence": config.defence.used, "attack": config.attack.clients > 0}.items():
        if used:
            raise ConfigError(
                f"[{key}] is about single uploads, which the server does not see with "
                "secure.enabled; remove one of them"
            )
    participants = max(1, round(federation.participation * federation.clients))
    if not section.min_clients <= participants <= MAX_CLIENTS:
        raise ConfigError(
            f"secure.enabled: {participants} clients take part in a round; "
            f"{section.min_clients} to {MAX_CLIENTS} are possible (federation.clients, "
            "federation.participation, secure.min_clients)"
        )
    if participants * summation.largest >= MAX_SUM:
        raise ConfigError(
            f"secure.fraction_bits = {section.fraction_bits}: a sum of {participants} uploads "
            "could exceed 63 bits; lower it, or lower run.max_norm"
        )


def _summable() -> list[str]:
    """Return the names of the methods whose server needs only sums."""
    return sorted(name for name, method in METHODS.items() if method.sums_suffice)


def partitioned(config: Config, source: Source, held_out: Tensor) -> Partition:
    """Assign every sample to a client, except those that are held out as public data.

    `data.samples` limits the training and validation samples of each client.
    """
    data, clients, seed = config.data, config.federation.clients, config.federation.seed
    if data.name == "private":
        return partitions.empty(clients)
    _check_published(config)
    rest = np.delete(np.arange(len(source)), held_out.numpy())
    y = source.y.numpy()[rest]
    if clients * partitions.MIN_SAMPLES > len(y):
        raise ConfigError(
            f"federation.clients = {clients}: {len(y)} samples are too few, every client needs at "
            f"least {partitions.MIN_SAMPLES}"
        )
    published, tests = config.published, source.tests
    drawn = (source.num_classes, clients, data.classes_per_client, seed)
    if published.partition and published.split:
        return published_splits(y, *drawn, tests)
    if published.partition:
        parts = published_partition(y, *drawn)
    elif data.partition == "classes":
        parts = partitions.by_classes(y, *drawn)
    elif data.partition == "dirichlet":
        parts = partitions.by_dirichlet(y, source.num_classes, clients, data.alpha, seed)
    else:
        parts = partitions.iid(y, clients, seed)
    if published.split:
        return official_splits(parts, y, seed, tests)
    partition = partitions.assemble(parts, y, seed, data.samples)
    return replace(partition, order=torch.from_numpy(rest)[partition.order])


def _check_published(config: Config) -> None:
    """Raise ConfigError for settings that the published deviations exclude."""
    published = config.published
    if config.data.name in SEPARATE and replace(published, batch_means=False) != Published():
        raise ConfigError(
            "published.partition, .split and .first_weights apply to data that are partitioned "
            f"here, but data.name = '{config.data.name}'; remove them"
        )
    if published.partition and config.data.partition != "classes":
        raise ConfigError(
            f"published.partition is a draw of classes, but data.partition = "
            f"'{config.data.partition}'; remove one of them"
        )
    if published.split and (config.data.samples is not None or config.public.name == HELD_OUT):
        raise ConfigError(
            "published.split uses all samples; remove data.samples and public.name = 'held-out'"
        )
    if published.first_weights and config.run.engine != "serial":
        raise ConfigError(
            "published.first_weights trains the clients of the first round one after the other; "
            "set run.engine = 'serial'"
        )


def _find_extractors(names: Sequence[str]) -> tuple[Extractor, ...]:
    with _about("model.extractors"):
        return tuple(extractor(name) for name in names)


def _names(extractors: Sequence[Extractor]) -> list[str]:
    """Return names for these objects in a configuration; equal names are numbered."""
    if not extractors:
        raise ConfigError("extractors: give at least one")
    names: list[str] = []
    for make in extractors:
        kind = make if hasattr(make, "__qualname__") else type(make)
        name = f"{kind.__module__}:{kind.__qualname__}"
        same = sum(known.split("#")[0] == name for known in names)
        names.append(f"{name}#{same + 1}" if same else name)
    return names


@contextmanager
def _about(key: str) -> Iterator[None]:
    """Add the key of the configuration to the message of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
