"""The app of a client with its own network and data, which takes about ten lines."""

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import torch
from flwr.clientapp import ClientApp
from torch import nn

from fedgh.config import Config
from fedgh.core.rng import isolated
from fedgh.core.types import Task
from fedgh.data import partition
from fedgh.data.public import PublicData, check_disjoint, check_inputs
from fedgh.data.published import Published
from fedgh.data.sources import Source
from fedgh.engines.device import find_device
from fedgh.engines.host import Blueprint
from fedgh.errors import ConfigError, FedghError
from fedgh.files import read_bytes, write_atomic
from fedgh.flower.bound import NodeConfig, PublicError
from fedgh.flower.client import BlueprintApp, check_here, parse_settings
from fedgh.flower.messages import Request
from fedgh.formats import few
from fedgh.models import check_extractor
from fedgh.models.adapt import NetworkExtractor
from fedgh.training.client_spec import ClientSpec
from fedgh.training.experiment import Experiment, load_source
from fedgh.training.public import check_public_section, load_public

logger = logging.getLogger(__name__)

MakeClient = Callable[[Task, NodeConfig], ClientSpec]
"""Function of the federation's task and the client's settings that returns its network and data."""

SECRET_BYTES = 16
"""Size of the client's secret, from which its initial weights are drawn."""


def client_app(make_client: MakeClient, methods: Collection[str] | None = None) -> ClientApp:
    """Return the app of a client with its own network and data; name it in node.conf as `app`.

    The server may request the `methods`, by their names in a configuration. By default these are
    the methods of fedgh, and of `allow` in node.conf, whose declaration shows that they do not send
    the client's own network.
    """

    def make_blueprint(request: Request, folder: Path, node: NodeConfig) -> Blueprint:
        settings = request.settings
        if settings.get("data", {}).get("name") != "private":
            raise PublicError(
                "this federation partitions a data set; clients with their own data need "
                "data.name = 'private'"
            )
        config = parse_settings(request, node, methods or (), own_network=True)
        if methods is not None and config.method_name not in methods:
            raise PublicError(f"this client does not take part in {config.method_name}")
        if methods is None and config.method.own_network_crosses:
            raise PublicError(
                f"{config.method_name} would send this client's own network, which the client "
                "allows only to methods that it names (client_app)"
            )
        no_samples = partition.empty(config.federation.clients)
        source = load_source(config.data)
        public = _public(config, source, request.public)
        experiment = Experiment(config, (source,), no_samples, extractors=(), public=public)
        return own_blueprint(experiment, request.client, make_client, node, folder)

    return BlueprintApp(make_blueprint)


def _public(config: Config, source: Source, digest: str | None) -> PublicData | None:
    """Return the public data if every client needs them, otherwise None.

    Raise PublicError if they cannot be loaded or differ from those of the server.
    """
    if config.method.public_for != "all":
        return None
    check_here(config)
    try:
        check_public_section(config)
        public = load_public(config, [source])
    except FedghError as problem:
        raise PublicError(
            f"the client cannot use the public data ({config.public.name}); see the client's own "
            "log"
        ) from problem
    if public is None or public.digest.hex() != digest:
        raise PublicError(
            f"the client's public data ({config.public.name}) are not those of the server; use the "
            "same files (public-dir, public-path in node.conf)"
        )
    return public


def own_blueprint(
    experiment: Experiment, client: int, make_client: MakeClient, node: NodeConfig, folder: Path
) -> Blueprint:
    """Return the blueprint of this client from its own network and data; raise FedghError."""
    task, privacy = experiment.task, experiment.privacy
    secret = _secret(folder / "secret")
    with isolated(secret, "participant"):
        spec = make_client(task, node)
    data = spec.source(experiment.source.class_names)
    if task.input_shape not in ((), data.shape):
        raise ConfigError(
            f"data.shape is {task.input_shape}, but the client's inputs have shape {data.shape}"
        )
    own_partition = partition.single(client, task.num_clients, data.y.numpy(), task.seed)
    if experiment.public is not None:
        check_inputs(experiment.public, data)
        check_disjoint(experiment.public, (data,), own_partition)

    extractor = spec.extractor(data.shape, task.num_classes, task.rep_dim)
    check_extractor(extractor.name, extractor, replace(task, input_shape=data.shape))
    logger.info(_in_words(data, extractor))

    def make_extractor(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
        with isolated(secret, "projection"):
            return extractor(shape, rep_dim)

    return Blueprint(
        task=task,
        method=experiment.config.method,
        local=experiment.config.local,
        extractors=(make_extractor,),
        sources=(data,),
        partition=own_partition,
        device=find_device(experiment.config.run.device),
        privacy=privacy and replace(privacy, unpredictable=True),  # the server knows the seed
        withhold_metrics=experiment.withhold_metrics,
        max_norm=experiment.config.run.max_norm,
        scale=experiment.scale,
        public=experiment.shared_public,
        published=Published(batch_means=experiment.config.published.batch_means),
    )


def _secret(path: Path) -> int:
    """Return the secret from which initial weights are drawn; create it at the first message.

    The seed of the federation must not be used, because the server knows it: an attacker who can
    draw the extractor's weights again knows of which representations the class means are means.
    """
    if not path.exists():
        write_atomic(path, os.urandom(SECRET_BYTES), 0o600)
    return int.from_bytes(read_bytes(path, SECRET_BYTES), "big")


def _in_words(data: Source, extractor: NetworkExtractor) -> str:
    """Return a client's data and network in one line for its log."""
    counts = zip(data.class_names, torch.bincount(data.y, minlength=data.num_classes), strict=True)
    classes = few([f"{int(count)} {name}" for name, count in counts if count])
    return f"{len(data.y)} samples of shape {data.shape}: {classes}; network {extractor.name}"
