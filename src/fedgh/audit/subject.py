"""Prepare an attack from a run folder: the target client, its final model, and its attackers.

The attacker's samples are those of the other clients; it has no sample of the target client. It has
either the target client's network, or only networks of other clients, which were trained with the
same shared header. If the uploaded vectors do not depend on a client's network, then every attacker
can compute them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from fedgh.audit.noise import DELTA, NO_NOISE, Level, level_of
from fedgh.audit.scene import AttackerData, ImageNetwork, Samples, Scene
from fedgh.core.batches import to_input
from fedgh.core.local import outputs
from fedgh.core.message import Shapes
from fedgh.core.method import Method
from fedgh.core.rng import stream
from fedgh.core.types import Client, Examples
from fedgh.errors import ConfigError, RunError
from fedgh.runs.folder import RunFolder
from fedgh.training import restore
from fedgh.training.restore import Checkpoint
from fedgh.trust import Trust

MAX_CLASSES = 5
"""Classes that are attacked."""

MAX_OTHERS = 3
"""Networks of other clients that an attacker without the target client's network has."""

MAX_AUXILIARY = 2000
"""The attacker's samples of one class, for up to `MAX_CLASSES` classes; fewer if there are more."""

MIN_SAMPLES = 10
"""Samples of a class that the attacker and the target client each need for a measurement."""

MAX_IMAGE = 64
"""Pixels per side; larger images are scaled down before they are reconstructed."""


@dataclass(frozen=True)
class TargetClient:
    """The client of a run whose uploads are attacked."""

    folder: RunFolder
    checkpoint: Checkpoint
    client: Client

    @property
    def method(self) -> Method:
        return self.checkpoint.blueprint.method

    @property
    def level(self) -> Level:
        """The noise that the run itself adds to an upload."""
        privacy = self.checkpoint.experiment.privacy
        return NO_NOISE if privacy is None else level_of(privacy)

    def about(self, labels: list[int], seed: int) -> dict[str, Any]:
        """Return the fields of the result that do not depend on the attack on these classes."""
        names = self.folder.identity().classes
        train = self.client.data.train.labels.bincount(minlength=len(names))
        return {
            "method": self.method.name,
            "client": self.client.id,
            "round": self.checkpoint.round,
            "seed": seed,
            "classes": [names[label] for label in labels],
            "sizes": train[labels].tolist(),
            "delta": DELTA,
            "protected": self.level,
            "sends_counts": any(
                "counts" in spec for spec in self.method.upload_specs(Shapes.of(self.client))
            ),
        }


@dataclass(frozen=True)
class Subject:
    """A target client that uploads class means, and a scene for each of the two attackers."""

    target: TargetClient
    labels: list[int]  # the attacked classes
    known: Scene  # the attacker has the target client's network
    unknown: Scene | None  # it has networks of other clients; None if there is no other network
    loss_members: Tensor  # loss of the target client's model on each of its training samples
    loss_held_out: Tensor  # the same on its validation and test samples


def averaged(method: Method, client: Client) -> Callable[[Tensor], Tensor]:
    """Return the function of inputs whose class means or moments the method uploads.

    Raise RunError if the method uploads neither, or uploads other values as well.
    """
    of = method.averaged(client)
    if of is None or method.shares not in ("class means", "moments"):
        raise RunError(
            f"{method.name}, as this run configures it, sends neither class means nor moments "
            "alone, and the audit attacks only those (Method.averaged); audit a run of another "
            "method"
        )
    return of


def choose_target(folder: RunFolder, client: int | None, *, trust: Trust) -> TargetClient:
    """Return the target client: `client`, or by default the first that took part in the run.

    Raise RunError or ConfigError if the run or that client cannot be attacked.
    """
    folder.check_exists()
    if not folder.checkpoint.is_dir():
        raise RunError(
            f"{folder.path} has no checkpoint/, and the attacks need the models in it; audit a "
            "run folder that has one"
        )
    checkpoint = restore.load(folder, trust=trust)
    if not checkpoint.took_part:
        raise RunError(f"{folder.path} has no completed round yet; resume it: fedgh resume")
    number = checkpoint.took_part[0] if client is None else client
    num_clients = checkpoint.experiment.task.num_clients
    if not 0 <= number < num_clients:
        raise ConfigError(
            f"--client {number}: the run has {num_clients} clients, numbered 0 to {num_clients - 1}"
        )
    if number not in checkpoint.took_part:
        raise ConfigError(
            f"--client {number} has not taken part in the run, so it has sent nothing; choose "
            "another --client"
        )
    target = TargetClient(folder, checkpoint, checkpoint.client(number))
    averaged(target.method, target.client)  # raise now, before anything is computed
    return target


def prepare(target: TargetClient, seed: int) -> Subject:
    """Compute the vectors of all samples that the attacks on class means need.

    Raise RunError if other clients have too few samples of the target client's classes.
    """
    checkpoint, client = target.checkpoint, target.client
    labels = _attacked_classes(checkpoint, client.id)
    auxiliary = auxiliary_samples(target, labels, seed)
    predict = target.method.logits
    members, held_out = samples_of_target(target, labels)

    def loss(on: Examples) -> Tensor:
        logits = outputs(client, lambda x: predict(client, x), on)
        return cross_entropy(logits, on.labels, reduction="none")

    def vectors_by(network_owner: Client) -> list[Tensor]:
        groups = (members, held_out, auxiliary)
        return [vectors(target.method, network_owner, on) for on in groups]

    true_vectors = vectors_by(client)
    others = [checkpoint.client(other) for other in _others(checkpoint, client.id, labels)]
    other_vectors = [
        vectors_by(other)
        for other in others
        if not torch.equal(vectors(target.method, other, held_out), true_vectors[1])
    ]

    def scene(networks: list[list[Tensor]], image_network: ImageNetwork | None = None) -> Scene:
        by_group = [torch.stack([network[group] for network in networks]) for group in range(3)]
        return Scene(
            AttackerData(
                _class_numbers(auxiliary, labels), by_group[2], images(auxiliary), image_network
            ),
            Samples(
                _class_numbers(members, labels),
                true_vectors[0],
                by_group[0].mean(0),
                images(members),
            ),
            Samples(
                _class_numbers(held_out, labels),
                true_vectors[1],
                by_group[1].mean(0),
                images(held_out),
            ),
        )

    return Subject(
        target=target,
        labels=labels,
        known=scene([true_vectors], _image_network(checkpoint, client)),
        unknown=scene(other_vectors) if other_vectors else None,
        loss_members=loss(members),
        loss_held_out=loss(held_out),
    )


def _image_network(checkpoint: Checkpoint, client: Client) -> ImageNetwork | None:
    """Return the client's network as a function of images in [0, 1]; None if it takes no images."""
    shape = checkpoint.experiment.task.input_shape
    if not is_image(checkpoint.experiment.source.x) or max(shape[1:]) > MAX_IMAGE:
        return None
    of = averaged(checkpoint.blueprint.method, client)
    return lambda images: of(to_input(2 * images.to(client.device) - 1)).cpu()


def is_image(x: Tensor) -> bool:
    """Return whether inputs are images, in grey or in colour."""
    return x.dtype == torch.uint8 and x.ndim == 4 and x.shape[1] in (1, 3)


def images(examples: Examples) -> Tensor | None:
    """Return pixels in [0, 1], at most `MAX_IMAGE` per side; None if the data are not images."""
    if not is_image(examples.x):
        return None
    pixels = examples.x[examples.index].float() / 255
    height, width = (min(side, MAX_IMAGE) for side in pixels.shape[2:])
    return adaptive_avg_pool2d(pixels, (height, width)).contiguous()


def _attacked_classes(checkpoint: Checkpoint, number: int) -> list[int]:
    """Return the classes of client `number` of which other clients have samples, too."""
    counts = checkpoint.experiment.counts()
    elsewhere = counts.sum(0) - counts[number]
    train = checkpoint.blueprint.partition.indices(number)[0]
    own = checkpoint.experiment.source.y[train].bincount(minlength=len(elsewhere))
    enough = (own >= MIN_SAMPLES) & (elsewhere >= MIN_SAMPLES)
    labels: list[int] = enough.nonzero().flatten().tolist()
    if not labels:
        raise RunError(
            f"client {number} has no class with {MIN_SAMPLES} training samples of which other "
            f"clients have {MIN_SAMPLES}, too, so the attacker cannot learn from them; choose "
            "another --client"
        )
    return labels[:MAX_CLASSES]


def samples_of_target(target: TargetClient, labels: list[int]) -> tuple[Examples, Examples]:
    """Return the target client's training samples of these classes, and its held-out samples."""
    data = target.client.data
    held_out = torch.cat([data.validation.index, data.test.index])
    return (
        _with_labels(data.train, labels),
        _with_labels(Examples(data.train.x, data.train.y, held_out), labels),
    )


def auxiliary_samples(target: TargetClient, labels: list[int], seed: int) -> Examples:
    """Return other clients' samples of these classes, in random order: the attacker's data."""
    experiment, number = target.checkpoint.experiment, target.client.id
    max_samples = MAX_AUXILIARY * MAX_CLASSES // max(MAX_CLASSES, len(labels))
    pool = experiment.source
    of_others = torch.ones(len(pool), dtype=torch.bool)
    of_others[torch.cat(experiment.partition.indices(number))] = False
    chosen = []
    for label in labels:
        rows = (of_others & (pool.y == label)).nonzero().flatten()
        order = torch.randperm(len(rows), generator=stream(seed, "auxiliary", number, label))
        chosen.append(rows[order[:max_samples]])
    return Examples(pool.x, pool.y, torch.cat(chosen))


def _others(checkpoint: Checkpoint, number: int, labels: list[int]) -> list[int]:
    """Return other clients whose networks the attacker has: most of the classes first."""
    counts = checkpoint.experiment.counts()
    shared = (counts[:, labels] > 0).sum(1).tolist()
    others = [other for other in checkpoint.took_part if other != number]
    return sorted(others, key=lambda other: -shared[other])[:MAX_OTHERS]


def _with_labels(examples: Examples, labels: list[int]) -> Examples:
    rows = examples.index[torch.isin(examples.labels, torch.tensor(labels))]
    return Examples(examples.x, examples.y, rows)


def _class_numbers(examples: Examples, labels: list[int]) -> Tensor:
    """Return the position of each sample's label among the attacked classes."""
    return torch.searchsorted(torch.tensor(labels), examples.labels)


def vectors(method: Method, client: Client, on: Examples) -> Tensor:
    """Return the vector of each sample that goes into the client's class means or moments."""
    return outputs(client, averaged(method, client), on).double()
