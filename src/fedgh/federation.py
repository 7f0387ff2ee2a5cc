"""A federation as a Python object: clients in, trained models out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import finalize

from rich.console import Console

from fedgh.choices import EngineName
from fedgh.config import DEFAULT_METHOD, Config, parse
from fedgh.core.method import Method
from fedgh.data import own
from fedgh.data.partition import SMALLEST, each_its_own
from fedgh.data.public import KNOWN_NAMES
from fedgh.data.sources import Source
from fedgh.errors import ConfigError, DataError
from fedgh.trained.clients import TrainedFederation
from fedgh.training.callbacks import Callback, OnRound
from fedgh.training.client_spec import ClientSpec
from fedgh.training.experiment import Experiment, checked
from fedgh.training.loop import run_or_resume
from fedgh.training.progress import Live
from fedgh.training.public import check_named, load_public

USUAL = Config()
"""The defaults of a configuration, which are those of a federation from Python."""


class Federation:
    """Clients that learn from one another.

    federation = Federation([ClientSpec(net_a, (xa, ya)), ClientSpec(net_b, (xb, yb))])
    trained = federation.run(rounds=10)
    trained.history                    # a DataFrame
    trained.clients[0].predict(x)      # names of classes

    The samples of each client are split 8:1:1, to train, to choose settings, to judge.

    Args:
        clients: the members of the federation.
        method: its name (`fedgh list methods`), or an object, `FedGH(server_lr=0.1)`.
        classes: the names of all classes; else those that occur.
        rep_dim: the width of the representations; else the smallest among the networks.
        epochs: of local training in each round, by SGD with `batch_size`, `lr` and `momentum`.
        public: data that a method needs beside those of the clients, as a client gives its
            own, `public=(x, y)`, or the name of a data set, `public="digits"`. Their labels
            count only where the method reads them.
        participation: the share of the clients that train in a round.
        seed: of all that is drawn here; networks start from the weights that they have.
        engine: "workers" computes on all cores, in processes of their own: then networks must be
            importable, and the program guarded by `if __name__ == "__main__":`.
        settings: anything else of a configuration, {"privacy.protects": "client"}.
    """

    def __init__(
        self,
        clients: Sequence[ClientSpec],
        method: str | Method = DEFAULT_METHOD,
        *,
        classes: Sequence[str] | None = None,
        public: own.Data | None = None,
        rep_dim: int | None = None,
        epochs: int = USUAL.local.epochs,
        batch_size: int = USUAL.local.batch_size,
        lr: float = USUAL.local.lr,
        momentum: float = USUAL.local.momentum,
        participation: float = USUAL.federation.participation,
        seed: int = USUAL.federation.seed,
        engine: EngineName = "serial",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.clients = _checked(clients)
        if not isinstance(method, str | Method):
            raise ConfigError(f"method: expected a name or a method, e.g. FedGH(), got {method!r}")
        sources = []
        for number, client in enumerate(self.clients):
            with _about(number, client):
                source = client.source(classes)
                if len(source) < SMALLEST:
                    raise DataError(
                        f"{len(source)} samples; {SMALLEST} are the least: one to train on, one to "
                        "evaluate, one to test"
                    )
                sources.append(source)
        self.classes = own.all_classes(sources) if classes is None else tuple(map(str, classes))
        self._sources = tuple(own.with_classes(source, self.classes) for source in sources)
        self._networks = tuple(
            client.extractor(source.shape, len(self.classes), rep_dim)
            for client, source in zip(self.clients, self._sources, strict=True)
        )
        widths = []
        for number, (client, network) in enumerate(zip(self.clients, self._networks, strict=True)):
            with _about(number, client):
                widths.append(network.width)
        table: dict[str, dict[str, Any]] = {
            "federation": {
                "clients": len(self.clients),
                "participation": participation,
                "seed": seed,
            },
            "data": {"name": "own"},
            "model": {
                "extractors": [network.name for network in self._networks],
                "rep_dim": min(widths) if rep_dim is None else rep_dim,
            },
            "local": {"epochs": epochs, "batch_size": batch_size, "lr": lr, "momentum": momentum},
            "run": {"engine": engine},
        }
        if isinstance(method, str):
            table["method"] = {"name": method}
        for key, value in (settings or {}).items():
            section, _, name = key.partition(".")
            table.setdefault(section, {})[name] = value
        self._table, self._method = table, method
        self._public: Source | None = None
        if isinstance(public, str) and public in KNOWN_NAMES:
            table["public"] = {"name": public, **table.get("public", {})}
        elif public is not None:
            self._public = self._public_source(public)
            samples = {"name": "own", "samples": len(self._public)}
            table["public"] = {**samples, **table.get("public", {})}
        self.config = self._config(USUAL.federation.rounds)

    def __repr__(self) -> str:
        """Who takes part, and where each network's representation was found."""
        width = self.config.model.rep_dim
        lines = [
            f"{self.config.method.name}, {len(self.classes)} classes, representations of {width}"
        ]
        for number, (client, network) in enumerate(zip(self.clients, self._networks, strict=True)):
            name = f"{number} {client.name}".strip()
            projected = "" if network.width == width else f", projected from {network.width}"
            lines.append(f"  {name}: {network.name}, {network.found}{projected}")
        return "\n".join(lines)

    def run(
        self,
        rounds: int = USUAL.federation.rounds,
        *,
        out: Path | str | None = None,
        callbacks: Iterable[Callback | OnRound] = (),
        progress: bool = True,
    ) -> TrainedFederation:
        """Train, and return what everybody has learned.

        With `out` everything is kept in that run folder, as `fedgh run` does, and a program that
        was stopped goes on there when it is run again. Without, it is gone with the result.
        """
        experiment = self.experiment(rounds)
        scratch = TemporaryDirectory(prefix="fedgh-") if out is None else None
        path = Path(scratch.name) / "run" if scratch else Path(out or "")
        with Live(Console(quiet=not progress), kept=scratch is None) as live:
            run = run_or_resume(experiment, path, [live, *callbacks])
        trained = TrainedFederation(run)
        if scratch:
            finalize(trained, scratch.cleanup)
        return trained

    def experiment(self, rounds: int = USUAL.federation.rounds) -> Experiment:
        """What `run` trains, checked: the same object that `fedgh.prepare` makes of a file."""
        labels = [source.y.numpy() for source in self._sources]
        config = self._config(rounds)
        check_named(config)
        return checked(
            Experiment(
                config=config,
                sources=self._sources,
                partition=each_its_own(labels, self.config.federation.seed),
                extractors=self._networks,
                names=tuple(client.name for client in self.clients),
                weights=b"".join(network.digest for network in self._networks),
                public=load_public(config, self._sources, given=self._public),
            )
        )

    def _public_source(self, data: own.Data) -> Source:
        """Public data as tensors; their labels are places among the classes if they are read."""
        usual = self._config(USUAL.federation.rounds)
        classes = self.classes if usual.method.public_labels else None
        try:
            return own.source_of(data, classes, usual.data.image_size)
        except DataError as error:
            raise DataError(f"public: {error}") from None

    def _config(self, rounds: int) -> Config:
        federation = {**self._table["federation"], "rounds": rounds}
        config = parse({**self._table, "federation": federation})
        if isinstance(self._method, Method):
            config = config.model_copy(update={"method": self._method})
        return config


def _checked(clients: object) -> tuple[ClientSpec, ...]:
    """Return the clients as a tuple; raise ConfigError for anything else."""
    if not isinstance(clients, Sequence) or not clients:
        raise ConfigError("a federation needs a list with at least one client")
    for number, one in enumerate(clients):
        if not isinstance(one, ClientSpec):
            raise ConfigError(
                f"client {number} is a {type(one).__name__}; say ClientSpec(network, data)"
            )
        if one.name.isdecimal() or one.name in [
            other.name for other in clients[:number] if other.name
        ]:
            raise ConfigError(
                f"client {number}: '{one.name}' is taken, or a number; give another name"
            )
    return tuple(clients)


@contextmanager
def _about(number: int, client: ClientSpec) -> Iterator[None]:
    """Say whose network or data a mistake is about."""
    try:
        yield
    except (ConfigError, DataError) as error:
        name = f" ({client.name})" if client.name else ""
        raise type(error)(f"client {number}{name}: {error}") from None
