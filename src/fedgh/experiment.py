"""From a configuration to a run folder: prepare, run, resume."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedgh import config as configs
from fedgh.config import Config, DataSection
from fedgh.core.rng import isolated, stream
from fedgh.core.rounds import Engine, Federation
from fedgh.core.runs import Record, RunFolder
from fedgh.core.types import Payload, Reply, Task
from fedgh.data import partition as deal
from fedgh.data.partition import Partition
from fedgh.data.sources import SOURCES, Source, Where
from fedgh.engines.host import Blueprint
from fedgh.engines.serial import Serial
from fedgh.engines.workers import Workers
from fedgh.errors import ConfigError
from fedgh.models import Extractor, check_extractor, extractor, split_model
from fedgh.summary import summarise

GLOBAL_SAMPLE = 1000
"""Size of the class-balanced sample on which `global_accuracy` is measured, at most."""


class Watcher(Protocol):
    """Who wants to see a run while it goes on."""

    def started(self, experiment: "Experiment", run: RunFolder, done: list[Record]) -> None:
        """The run begins, or goes on after the rounds in `done`."""

    def replied(self, reply: Reply) -> None:
        """A client has finished its job."""

    def finished_round(self, record: Record) -> None:
        """A round is complete."""


class Unwatched:
    """Nobody looks."""

    def started(self, experiment: "Experiment", run: RunFolder, done: list[Record]) -> None:
        """Say nothing."""

    def replied(self, reply: Reply) -> None:
        """Say nothing."""

    def finished_round(self, record: Record) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Experiment:
    """A configuration with its data loaded and dealt, ready to run."""

    config: Config
    source: Source
    partition: Partition
    extractors: tuple[Extractor, ...]

    @property
    def task(self) -> Task:
        """What everybody in this federation knows."""
        return Task(
            num_classes=self.source.num_classes,
            rep_dim=self.config.model.rep_dim,
            num_clients=self.config.federation.clients,
            rounds=self.config.federation.rounds,
            seed=self.config.federation.seed,
            input_shape=self.source.shape,
        )

    def initial_server(self) -> Payload:
        """What the server holds before the first round; refuses what the method cannot do."""
        seed = self.task.seed
        with isolated(seed, "server-models"):
            models = [split_model(make, self.task) for make in self.extractors]
        return self.config.method.init_server(self.task, models, stream(seed, "server"))

    def clients(self) -> list[Record]:
        """Who the clients are: network, classes, samples."""
        counts = self.partition.counts(self.source.y, self.source.num_classes)
        names, zoo = self.source.class_names, self.config.model.zoo
        return [
            {
                "client": client,
                "extractor": zoo[client % len(zoo)],
                "classes": {names[label]: int(row[label]) for label in row.nonzero().flatten()},
                **dict(zip(("train", "evaluation", "test"), sizes, strict=True)),
            }
            for client, (row, sizes) in enumerate(
                zip(counts, self.partition.bounds.diff(dim=1).tolist(), strict=True)
            )
        ]

    def blueprint(self) -> Blueprint:
        """What an engine needs to make the clients."""
        sample = None
        if self.config.run.global_accuracy:
            sample = _balanced_test_sample(self.source, self.partition, self.config.federation.seed)
        return Blueprint(
            task=self.task,
            method=self.config.method,
            local=self.config.local,
            extractors=self.extractors,
            x=self.source.x,
            y=self.source.y,
            partition=self.partition,
            global_sample=sample,
        )


def load_source(data: DataSection) -> Source:
    """The data that a configuration names."""
    return SOURCES[data.name](Where(data.dir, data.path, data.image_size))


def prepare(
    config: Config, *, source: Source | None = None, extractors: Sequence[Extractor] | None = None
) -> Experiment:
    """Load and deal the data and find the networks, so that what is impossible is refused now.

    `source` and `extractors` stand in for what the configuration names.
    """
    data, federation = config.data, config.federation
    source = source or load_source(data)
    y, seed = source.y.numpy(), federation.seed
    if data.partition == "classes":
        parts = deal.by_classes(
            y, source.num_classes, federation.clients, data.classes_per_client, seed
        )
    elif data.partition == "dirichlet":
        parts = deal.by_dirichlet(y, source.num_classes, federation.clients, data.alpha, seed)
    else:
        parts = deal.iid(y, federation.clients, seed)
    if extractors is not None:
        zoo = [_import_name(make) for make in extractors]
        config = config.model_copy(update={"model": config.model.model_copy(update={"zoo": zoo})})
    found = _find_extractors(config, source, extractors)
    experiment = Experiment(config, source, deal.assemble(parts, y, seed), found)
    experiment.initial_server()
    return experiment


def run(experiment: Experiment, out: Path, watch: Watcher | None = None) -> RunFolder:
    """Run a new experiment into the folder `out`."""
    folder = RunFolder.create(out, experiment.config.to_toml(), experiment.clients())
    return _train(experiment, folder, watch or Unwatched())


def resume(
    path: Path,
    watch: Watcher | None = None,
    how: Mapping[str, object] | None = None,
    prepare: Callable[[Config], Experiment] = prepare,
) -> RunFolder:
    """Go on with a run after its last completed round.

    `how` replaces keys of the section `run`, none of which changes a result. A run that was
    made with its own source or extractors needs a `prepare` that supplies them again.
    """
    folder = RunFolder.open(path)
    overrides = [f"run.{key}={value}" for key, value in (how or {}).items()]
    config = configs.load(folder.config, overrides)
    return _train(prepare(config), folder, watch or Unwatched())


def _train(experiment: Experiment, folder: RunFolder, watch: Watcher) -> RunFolder:
    config = experiment.config
    with ExitStack() as stack:
        stack.enter_context(folder.locked())
        stack.enter_context(_one_thread())
        done, state = folder.rewind()
        watch.started(experiment, folder, folder.records())
        if done < config.federation.rounds:
            engine = stack.enter_context(closing(_engine(experiment, folder.checkpoint, done)))
            federation = Federation(
                experiment.task,
                config.method,
                engine,
                experiment.initial_server(),
                participation=config.federation.participation,
                eval_every=config.run.eval_every,
                metrics=["accuracy", "evaluation_accuracy"]
                + ["global_accuracy"] * config.run.global_accuracy,
            )
            if state is not None:
                federation.load(state)
            for number in range(done + 1, config.federation.rounds + 1):
                record = federation.round(number, watch.replied)
                last = number == config.federation.rounds
                keep = last or number % config.run.checkpoint_every == 0
                if keep:
                    engine.save(number)
                folder.append(record)
                if keep:
                    folder.commit(number, federation.state())
                watch.finished_round(record)
            folder.discard_leftovers()
        folder.write_summary(summarise(config, experiment.task, folder.records(), folder.clients()))
    return folder


def _engine(experiment: Experiment, checkpoint: Path, round: int) -> Engine:
    section = experiment.config.run
    if section.engine == "serial":
        return Serial(experiment.blueprint(), checkpoint, round)
    return Workers(experiment.blueprint(), checkpoint, round, section.workers)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Engines and server compute with one thread each, so that all add up in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _balanced_test_sample(source: Source, partition: Partition, seed: int) -> Tensor:
    """As many test samples of each class, from all clients together."""
    test = torch.cat([partition.indices(client)[2] for client in range(len(partition))])
    test = test[torch.randperm(len(test), generator=stream(seed, "global-sample"))]
    groups = [test[source.y[test] == label] for label in range(source.num_classes)]
    groups = [group for group in groups if len(group)]
    size = min(min(len(group) for group in groups), max(1, GLOBAL_SAMPLE // source.num_classes))
    return torch.cat([group[:size] for group in groups]).sort().values


def _find_extractors(
    config: Config, source: Source, given: Sequence[Extractor] | None
) -> tuple[Extractor, ...]:
    """The extractors that the configuration names, or those given; each tried on an input."""
    try:
        found = tuple(given or map(extractor, config.model.zoo))
        for name, make in dict(zip(config.model.zoo, found, strict=True)).items():
            check_extractor(name, make, source.shape, config.model.rep_dim)
    except ConfigError as error:
        raise ConfigError(f"model.zoo: {error}") from None
    return found


def _import_name(make: Any) -> str:
    """How a configuration would name this object."""
    name = getattr(make, "__qualname__", type(make).__qualname__)
    return f"{getattr(make, '__module__', type(make).__module__)}:{name}"
