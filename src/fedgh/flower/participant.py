"""What an organisation brings to a federation: its own network and data, in about ten lines."""

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from flwr.clientapp import ClientApp
from torch import nn

from fedgh.config import Config
from fedgh.core.rng import isolated
from fedgh.core.types import Task
from fedgh.data import partition
from fedgh.data.public import PublicData, check_disjoint, check_inputs
from fedgh.data.sources import Source
from fedgh.engines.device import find_device
from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, FedghError
from fedgh.files import read_bytes, write_atomic
from fedgh.flower.bound import NodeConfig, PublicError
from fedgh.flower.client import app_of, check_here, log, parse_settings
from fedgh.flower.messages import Request
from fedgh.models import check_extractor
from fedgh.training.client_spec import ClientSpec
from fedgh.training.experiment import Experiment, load_source
from fedgh.training.public import check_public_section, load_public

MakeClient = Callable[[Task, NodeConfig], ClientSpec]
"""From what the federation agrees on, and the participant's own settings, to what it brings."""

SECRET = 16
"""Bytes of what first weights are drawn from."""


def client_app(make_client: MakeClient, methods: Collection[str] | None = None) -> ClientApp:
    """The app of a participant that brings its own network and data.

    Name it where the SuperNode is started: `--node-config 'client=0 app="my_module:app"'`.
    The server may ask for `methods`, by the names that a configuration has for them; by default for
    each method of fedgh, and of `allow` in node.conf, with which the participant's own network does
    not travel, by what the method declares.
    """

    def bring(request: Request, home: Path, node: NodeConfig) -> Blueprint:
        settings = request.settings
        if settings.get("data", {}).get("name") != "private":
            raise PublicError("this federation deals out its data; it is not for data of your own")
        config = parse_settings(request, node, methods or (), own_network=True)
        if methods is not None and config.method_name not in methods:
            raise PublicError(f"this participant does not take part in {config.method_name}")
        if methods is None and config.method.own_network_crosses:
            raise PublicError(
                f"with {config.method_name} this participant's own network would travel, which it "
                "allows only to methods that it names (client_app)"
            )
        nobodys = partition.empty(config.federation.clients)
        try:
            source = load_source(config.data)
            public = _public(config, source, request.public)
            experiment = Experiment(config, (source,), nobodys, extractors=(), public=public)
            return own_blueprint(experiment, request.client, make_client, node, home)
        except PublicError:
            raise
        except FedghError as problem:
            log(problem)
            raise PublicError(
                "what it brings does not fit; the participant's own log says more"
            ) from None

    return app_of(bring)


def _public(config: Config, source: Source, digest: str | None) -> PublicData | None:
    """Load the public data that every client must have; refuse others than the server's."""
    if config.method.public_for != "all":
        return None
    check_here(config)
    try:
        check_public_section(config)
        found = load_public(config, [source])
    except FedghError as problem:
        log(problem)
        raise PublicError(
            f"the public data ({config.public.name}) cannot be used here; the participant's own "
            "log says more"
        ) from None
    if found is None or found.digest.hex() != digest:
        raise PublicError(
            f"the public data here ({config.public.name}) are not those of the server; use the "
            "same files (public-dir, public-path in node.conf)"
        )
    return found


def own_blueprint(
    experiment: Experiment, client: int, make_client: MakeClient, node: NodeConfig, home: Path
) -> Blueprint:
    """Make the client of this participant from its own network and data."""
    task, privacy = experiment.task, experiment.privacy
    secret = _secret(home / "secret")
    with isolated(secret, "participant"):
        brought = make_client(task, node)
    data = brought.source(experiment.source.class_names)
    if task.input_shape not in ((), data.shape):
        raise ConfigError(f"data.shape is {task.input_shape}, the inputs here have {data.shape}")
    _check_unchanged(home / "data.digest", data.digest)
    own = partition.single(client, task.num_clients, data.y.numpy(), task.seed)
    if experiment.public is not None:
        check_inputs(experiment.public, data)
        check_disjoint(experiment.public, (data,), own)

    extractor = brought.extractor(data.shape, task.num_classes, task.rep_dim)
    check_extractor(extractor.name, extractor, replace(task, input_shape=data.shape))

    def secretly(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
        with isolated(secret, "projection"):
            return extractor(shape, rep_dim)

    return Blueprint(
        task=task,
        method=experiment.config.method,
        local=experiment.config.local,
        extractors=(secretly,),
        sources=(data,),
        partition=own,
        device=find_device(experiment.config.run.device),
        privacy=privacy and replace(privacy, unpredictable=True),  # the server knows the seed
        withhold_metrics=experiment.withhold_metrics,
        max_norm=experiment.config.run.max_norm,
        public=experiment.shared_public,
    )


def _secret(path: Path) -> int:
    """What first weights are drawn from, the same for every message of a run.

    The server knows the seed of the federation. Whoever can draw an extractor again knows what
    class means are means of.
    """
    if not path.exists():
        write_atomic(path, os.urandom(SECRET), 0o600)
    return int.from_bytes(read_bytes(path, SECRET), "big")


def _check_unchanged(path: Path, digest: bytes) -> None:
    """Other rows would be split otherwise: what was kept for testing would be trained on."""
    if not path.exists():
        write_atomic(path, digest)
    elif read_bytes(path, len(digest)) != digest:
        raise ConfigError(
            "the data are not those of the first round; put them back, or use the new ones in a "
            "new run"
        )
