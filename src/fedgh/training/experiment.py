"""From a configuration to an experiment that is ready to run: data dealt, networks found."""

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
from fedgh.core.groups import check_same_part
from fedgh.core.message import Message, Shapes
from fedgh.core.records import ClientInfo, Identity
from fedgh.core.rng import isolated, stream
from fedgh.core.server import Surroundings
from fedgh.core.types import Examples, GlobalRounds, LocalTraining, Payload, SplitModel, Task
from fedgh.data import partition as deal
from fedgh.data.global_sample import balanced
from fedgh.data.partition import Partition
from fedgh.data.public import PublicData, check_apart, check_inputs
from fedgh.data.sources import SEPARATE, SOURCES, Source, Where
from fedgh.engines.device import find_device
from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, MethodError
from fedgh.models import Extractor, check_extractor, extractor, split_model
from fedgh.privacy.accounting import Account, noise_multiplier
from fedgh.privacy.mechanism import Privacy
from fedgh.training.public import check_named, held_out_rows, load_public


@dataclass(frozen=True)
class Experiment:
    """A configuration with its data loaded and dealt, ready to run."""

    config: Config
    sources: tuple[Source, ...]  # one that is dealt to all clients, or each client's own
    partition: Partition
    extractors: tuple[Extractor, ...]
    names: tuple[str, ...] = ()  # of the clients, where they have some
    weights: bytes = b""  # a fingerprint of the networks' first weights, where these were brought
    public: PublicData | None = None  # samples that are known beside those of the clients

    @property
    def source(self) -> Source:
        """The data that are dealt; of clients that bring their own, the first's."""
        return self.sources[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; () when clients have inputs of different shapes."""
        shapes = {source.shape for source in self.sources}
        return shapes.pop() if len(shapes) == 1 else ()

    @property
    def task(self) -> Task:
        """What everybody in this federation knows."""
        return Task(
            num_classes=self.source.num_classes,
            rep_dim=self.config.model.rep_dim,
            num_clients=self.config.federation.clients,
            rounds=self.config.federation.rounds,
            seed=self.config.federation.seed,
            input_shape=self.input_shape,
            privacy=self.privacy,
            public_size=self.public_size,
        )

    @property
    def public_size(self) -> int:
        """The number of public samples that the method may count on, also before they are here."""
        return 0 if self.config.method.public_for == "none" else self.config.public.samples

    @property
    def shared_public(self) -> PublicData | None:
        """The public data that every client must have; None when it needs none."""
        return self.public if self.config.method.public_for == "all" else None

    @property
    def private(self) -> bool:
        """Whether the data are with the participants, and nowhere else."""
        return self.config.data.name == "private"

    @property
    def pooled(self) -> bool:
        """Whether this machine has the data of all clients, dealt out of one source."""
        return self.config.data.name not in SEPARATE and len(self.source) > 0

    @property
    def global_rounds(self) -> GlobalRounds:
        """The rounds in which clients are judged on all classes: none where data are apart."""
        return self.config.run.global_accuracy if self.pooled else "never"

    @property
    def privacy(self) -> Privacy | None:
        """How uploads are made private; None when they are not, or when there is nothing to."""
        section, method = self.config.privacy, self.config.method
        if section.protects == "nothing":
            return None
        if method.shares == "more":
            raise MethodError(
                f"{method.name} sends more than class means: privacy.protects = "
                f"'{section.protects}' cannot be kept"
            )
        if method.weighs_by_examples and (section.protects, section.counts) != ("sample", "public"):
            raise MethodError(
                f"{method.name} tells the server how many samples clients have: privacy.protects = "
                f"'{section.protects}' with privacy.counts = '{section.counts}' cannot be kept"
            )
        if method.shares == "nothing":
            return None
        releases = 1 if self._one_release else self.config.federation.rounds
        multiplier = noise_multiplier(section.epsilon, section.delta, releases)
        return Privacy(section.protects, section.counts, section.clip, multiplier)

    @property
    def withhold_metrics(self) -> bool:
        """Whether clients keep to themselves what no noise covers, whatever the method."""
        return self.config.privacy.protects != "nothing"

    def account(self) -> Account | None:
        """An account of what clients spend, with nothing spent yet; None when they do not."""
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
        """What the server holds before the first round; refuses what the method cannot do."""
        seed = self.task.seed
        self._check_messages()
        with isolated(seed, "server-models"):
            models = [split_model(make, self.task) for make in self.extractors]
        method = self.config.method
        try:
            check_same_part(method, self.task, models)
            # Layers that the server starts with draw from the global generator.
            with isolated(seed, "init-server"):
                return method.init_server(self.task, models, stream(seed, "server"))
        except ConfigError as error:
            raise MethodError(str(error)) from None

    def _check_messages(self) -> None:
        """Refuse a method whose messages cannot be specified for these clients."""
        method, around = self.config.method, self.surroundings()
        for message in (method.up, method.down):
            if not isinstance(message, Message):
                raise MethodError(f"{method.name} declares {message!r}, which is no message")
        if not around.networks and method.own_network_crosses:
            raise MethodError(
                f"{method.name} sends clients' networks: name the one that all have in "
                "model.extractors, and the shape of its inputs in data.shape"
            )
        for kind in range(max(1, len(around.networks))):
            shapes = Shapes(self.task, partial(around.network, kind))
            try:
                method.upload_specs(shapes)
                method.download_specs(shapes)
            except (ConfigError, AttributeError) as error:  # a part or field that is not there
                raise MethodError(f"{method.name}: {error}") from None

    def surroundings(self) -> Surroundings:
        """Return the server's means beside its state."""
        return Surroundings(
            networks=tuple(partial(_server_network, make, self.task) for make in self.extractors),
            public=self._public_for_server(),
            device=find_device(self.config.run.device),
        )

    def _public_for_server(self) -> Examples | None:
        if self.public is None or self.config.method.public_for == "none":
            return None
        return self.public.examples()

    def fingerprint(self) -> str:
        """The same for two experiments exactly when honest clients would compute the same."""
        settings = json.dumps(self.config.portable(), sort_keys=True)
        digest = hashlib.blake2b(settings.encode(), digest_size=16)
        for source in self.sources:
            digest.update(source.digest)
        digest.update(self.weights)
        digest.update(self.public.digest if self.public else b"")
        for tensor in (self.partition.order, self.partition.bounds):
            digest.update(tensor.numpy().data)
        return digest.hexdigest()

    def identity(self) -> Identity:
        """Which data these are: name, size, classes, and the fingerprint."""
        return Identity(
            name=self.source.name,
            samples=sum(map(len, self.sources)),
            classes=list(self.source.class_names),
            **(_inputs(self.source) if len(self.sources) == 1 else {}),
            fingerprint=self.fingerprint(),
        )

    def counts(self) -> Tensor:
        """How many samples of each class each client has, [clients, classes]."""
        if len(self.sources) == 1:
            labels = self.source.y[self.partition.order]
        else:
            rows = [torch.cat(self.partition.indices(k)) for k in range(len(self.sources))]
            labels = torch.cat([s.y[r] for s, r in zip(self.sources, rows, strict=True)])
        return self.partition.counts(labels, self.source.num_classes)

    def clients(self) -> list[ClientInfo]:
        """Who the clients are: network, classes, samples."""
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
        """What an engine needs to make the clients."""
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
        )


def _server_network(make: Extractor, task: Task) -> SplitModel:
    """Make a network like a client's; the generator that the server trains with stays as it is."""
    with isolated(task.seed, "server-network"):
        return split_model(make, task)


def _inputs(source: Source) -> dict[str, Any]:
    """What a model made for these data takes."""
    return {"shape": list(source.shape), "dtype": str(source.x.dtype).removeprefix("torch.")}


def load_source(data: DataSection) -> Source:
    """The data that a configuration names."""
    classes, shape = tuple(data.classes or ()), tuple(data.shape or ())
    return SOURCES[data.name](Where(data.dir, data.path, data.image_size, classes, shape))


def prepare(
    config: Config, *, source: Source | None = None, extractors: Sequence[Extractor] | None = None
) -> Experiment:
    """Load and deal the data and find the networks, so that what is impossible is refused now.

    `source` and `extractors` stand in for what the configuration names.
    """
    check_named(config)
    source = source or load_source(config.data)
    if extractors is not None:
        model = config.model.model_copy(update={"extractors": _names(extractors)})
        config = config.model_copy(update={"model": model})
    if extractors is not None:
        found = tuple(extractors)
    elif config.data.name == "private" and not source.shape:
        found = ()  # no network is shared, so none need be known here
    else:
        found = _find_extractors(config.model.extractors)
    held = held_out_rows(config, source)
    public = load_public(config, [source], held=held)
    partition = _deal(config, source, held)
    return checked(Experiment(config, (source,), partition, found, public=public))


def checked(experiment: Experiment) -> Experiment:
    """The same experiment; what is impossible in it is refused now, not in the first round."""
    config, sources = experiment.config, experiment.sources
    find_device(config.run.device)
    _check_local(config.local)
    for source in sources:
        check_augment(config.local, source)
    if config.run.global_accuracy == "every" and not experiment.pooled:
        raise ConfigError(
            "run.global_accuracy = 'every' needs the data of all clients in one place, but "
            f"data.name = '{config.data.name}'; leave it at 'last', which measures nothing then"
        )
    if config.data.samples is not None and config.data.name in SEPARATE:
        raise ConfigError(
            "data.samples is about data that are dealt here, but data.name = "
            f"'{config.data.name}'; remove it: participants bring as many as they are to have"
        )
    _check_class_means(config)
    _check_public(experiment)
    for number, make in enumerate(experiment.extractors):
        task = replace(experiment.task, input_shape=sources[number % len(sources)].shape)
        with _about("model.extractors"):
            check_extractor(config.model.extractors[number], make, task)
    experiment.account()
    experiment.initial_server()
    return experiment


def _check_local(local: LocalTraining) -> None:
    """Refuse settings of local training that exclude each other."""
    if local.momentum and local.optimizer != "sgd":
        raise ConfigError(
            f"local.momentum = {local.momentum:g} is for local.optimizer = 'sgd', not for "
            f"'{local.optimizer}', which has moments of its own; set it to 0"
        )


def check_augment(local: LocalTraining, source: Source) -> None:
    """Refuse to flip or crop what has no sides."""
    if local.augment and not source.images:
        raise ConfigError(f"local.augment is for images, but inputs have shape {source.shape}")


def _check_public(experiment: Experiment) -> None:
    """Refuse public data that no network here takes, or that are private as well."""
    if experiment.public is not None:
        for source in experiment.sources:
            check_inputs(experiment.public, source)
        check_apart(experiment.public, experiment.sources, experiment.partition)


def _check_class_means(config: Config) -> None:
    """Refuse what only makes sense for methods that send class means."""
    wanted = {
        "defence.agreement": config.defence.agreement,
        "attack.clients": config.attack.clients,
    }
    for key, value in wanted.items():
        if value and config.method.shares != "class means":
            raise MethodError(
                f"{key} is about class means, which {config.method.name} does not send"
            )


def _deal(config: Config, source: Source, held: Tensor) -> Partition:
    """Give every sample but those held out to a client.

    With `data.samples` a client keeps only some to learn from.
    """
    data, clients, seed = config.data, config.federation.clients, config.federation.seed
    if data.name == "private":
        return deal.nothing(clients)
    rest = np.delete(np.arange(len(source)), held.numpy())
    y = source.y.numpy()[rest]
    if clients * deal.SMALLEST > len(y):
        raise ConfigError(
            f"federation.clients = {clients}: {len(y)} samples are too few, every client needs at "
            f"least {deal.SMALLEST}"
        )
    if data.partition == "classes":
        parts = deal.by_classes(y, source.num_classes, clients, data.classes_per_client, seed)
    elif data.partition == "dirichlet":
        parts = deal.by_dirichlet(y, source.num_classes, clients, data.alpha, seed)
    else:
        parts = deal.iid(y, clients, seed)
    dealt = deal.assemble(parts, y, seed, data.samples)
    return replace(dealt, order=torch.from_numpy(rest)[dealt.order])


def _find_extractors(names: Sequence[str]) -> tuple[Extractor, ...]:
    with _about("model.extractors"):
        return tuple(extractor(name) for name in names)


def _names(extractors: Sequence[Extractor]) -> list[str]:
    """How a configuration would name these objects; those that look alike are numbered."""
    if not extractors:
        raise ConfigError("extractors: give at least one")
    names: list[str] = []
    for make in extractors:
        kind = make if hasattr(make, "__qualname__") else type(make)
        name = f"{kind.__module__}:{kind.__qualname__}"
        alike = sum(known.split("#")[0] == name for known in names)
        names.append(f"{name}#{alike + 1}" if alike else name)
    return names


@contextmanager
def _about(key: str) -> Iterator[None]:
    """Say which key of the configuration a mistake is about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
