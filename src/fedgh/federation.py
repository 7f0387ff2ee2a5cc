"""The Python interface of a federation: from clients to trained models."""

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
from fedgh.data.partition import MIN_SAMPLES, separate
from fedgh.data.public import KNOWN_NAMES
from fedgh.data.sources import Source
from fedgh.errors import ConfigError, DataError
from fedgh.trained.clients import TrainedFederation
from fedgh.training.callbacks import Callback, OnRound
from fedgh.training.client_spec import ClientSpec
from fedgh.training.experiment import Experiment, validated
from fedgh.training.loop import run_or_resume
from fedgh.training.progress import Live
from fedgh.training.public import check_public_section, load_public

DEFAULTS = Config()
"""The defaults of a configuration, which also apply in Python."""


class Federation:
    """Clients that learn together.

        federation = Federation([ClientSpec(net_a, (xa, ya)), ClientSpec(net_b, (xb, yb))])
        trained = federation.run(rounds=10)
        trained.history                    # a DataFrame
        trained.clients[0].predict(x)      # names of classes

    The samples of each client are split 8:1:1 into training, validation and test split.

    Args:
        clients: the members of the federation.
        method: its name (`fedgh list methods`), or an object, `FedGH(server_lr=0.1)`.
        classes: the names of all classes; by default those that occur in the data.
        rep_dim: the width of representations; by default the smallest width of the networks.
        epochs: epochs of local training in each round, by SGD with `batch_size`, `lr` and
            `momentum`.
        public: public data for methods that need them, in a form that a client's data may have,
            `public=(x, y)`, or the name of a data set, `public="digits"`. Their labels matter only
            if the method reads them.
        participation: the share of the clients that the server selects in a round.
        seed: the seed of all random numbers; networks start from the weights that they have.
        engine: "workers" computes on all cores, in separate processes: networks must then be
            importable, and the program guarded by `if __name__ == "__main__":`.
        settings: other settings of a configuration, {"privacy.protects": "client"}.
    """

    def __init__(
        self,
        clients: Sequence[ClientSpec],
        method: str | Method = DEFAULT_METHOD,
        *,
        classes: Sequence[str] | None = None,
        public: own.Data | None = None,
        rep_dim: int | None = None,
        epochs: int = DEFAULTS.local.epochs,
        batch_size: int = DEFAULTS.local.batch_size,
        lr: float = DEFAULTS.local.lr,
        momentum: float = DEFAULTS.local.momentum,
        participation: float = DEFAULTS.federation.participation,
        seed: int = DEFAULTS.federation.seed,
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
                if len(source) < MIN_SAMPLES:
                    raise DataError(
                        f"{len(source)} samples; at least {MIN_SAMPLES} are needed: one each for "
                        "training, validation and test"
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
        self.config = self._config(DEFAULTS.federation.rounds)

    def __repr__(self) -> str:
        """Return the clients, with the place of the representation in each network."""
        width = self.config.model.rep_dim
        lines = [
            f"{self.config.method.name}, {len(self.classes)} classes, representations of {width}"
        ]
        for number, (client, network) in enumerate(zip(self.clients, self._networks, strict=True)):
            name = f"{number} {client.name}".strip()
            projected = "" if network.width == width else f", projected from {network.width}"
            lines.append(f"  {name}: {network.name}, {network.representation}{projected}")
        return "\n".join(lines)

    def run(
        self,
        rounds: int = DEFAULTS.federation.rounds,
        *,
        out: Path | str | None = None,
        callbacks: Iterable[Callback | OnRound] = (),
        progress: bool = True,
    ) -> TrainedFederation:
        """Train, and return the trained clients.

        With `out`, the run is stored in that run folder, as with `fedgh run`; a program that was
        stopped resumes it when it is started again. Without `out`, the run is deleted together with
        the returned object.
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

    def experiment(self, rounds: int = DEFAULTS.federation.rounds) -> Experiment:
        """Return the validated experiment that `run` trains, like `fedgh.prepare` for a file."""
        labels = [source.y.numpy() for source in self._sources]
        config = self._config(rounds)
        check_public_section(config)
        return validated(
            Experiment(
                config=config,
                sources=self._sources,
                partition=separate(labels, self.config.federation.seed),
                extractors=self._networks,
                names=tuple(client.name for client in self.clients),
                weights=b"".join(network.digest for network in self._networks),
                public=load_public(config, self._sources, given=self._public),
            )
        )

    def _public_source(self, data: own.Data) -> Source:
        """Return public data as tensors; labels are positions in `classes` if they are read."""
        config = self._config(DEFAULTS.federation.rounds)
        classes = self.classes if config.method.public_labels else None
        try:
            return own.source_of(data, classes, config.data.image_size)
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
                f"client {number} is a {type(one).__name__}; write ClientSpec(network, data)"
            )
        if one.name.isdecimal() or one.name in [
            other.name for other in clients[:number] if other.name
        ]:
            raise ConfigError(
                f"client {number}: the name '{one.name}' is taken or is a number; give another name"
            )
    return tuple(clients)


@contextmanager
def _about(number: int, client: ClientSpec) -> Iterator[None]:
    """Add the client's number and name to the message of an error."""
    try:
        yield
    except (ConfigError, DataError) as error:
        name = f" ({client.name})" if client.name else ""
        raise type(error)(f"client {number}{name}: {error}") from None
