"""From a run folder to the scenes of an attack: a victim with its final model, and its attackers.

The attacker's samples are those of the other clients; of the victim's it has none. It either has
the victim's network, or only those of other clients, who learned with the same shared header.
Where vectors do not depend on a client's network, every attacker has what makes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from fedgh.audit.noise import DELTA, OPEN, Level, level_of
from fedgh.audit.scene import Knowledge, Samples, Scene, See
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
MAX_OTHERS = 3
"""Networks of other clients that an attacker without the victim's has."""

MAX_AUXILIARY = 2000
"""The attacker's samples of a class, of up to `MAX_CLASSES`; of more classes it has fewer."""

LEAST = 10
"""Samples of a class that the attacker and the victim need for anything to be measured."""

MAX_IMAGE = 64
"""Pixels to a side; larger images are made smaller before they are reconstructed."""


@dataclass(frozen=True)
class Victim:
    """A client of a run, whose uploads are attacked."""

    folder: RunFolder
    left: Checkpoint
    client: Client

    @property
    def method(self) -> Method:
        """The method of the run."""
        return self.left.blueprint.method

    @property
    def level(self) -> Level:
        """How the run itself protects an upload."""
        privacy = self.left.experiment.privacy
        return OPEN if privacy is None else level_of(privacy)

    def about(self, labels: list[int], seed: int) -> dict[str, Any]:
        """What the result says of it, whatever the attack on these classes."""
        names = self.folder.identity().classes
        train = self.client.data.train.labels.bincount(minlength=len(names))
        return {
            "method": self.method.name,
            "client": self.client.id,
            "round": self.left.round,
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
    """A victim that sends class means, and the two attackers."""

    victim: Victim
    labels: list[int]  # the attacked classes
    known: Scene  # the attacker has the victim's network
    unknown: Scene | None  # it has those of others; None when no other network is to be had
    loss_members: Tensor  # of the victim's model, on each training sample
    loss_held_out: Tensor


def averaged(method: Method, client: Client) -> Callable[[Tensor], Tensor]:
    """Return what the method sends class means or moments of: a function of inputs."""
    of = method.averaged(client)
    if of is None or method.shares not in ("class means", "moments"):
        raise RunError(
            f"{method.name}, as this run sets it, sends neither class means nor moments alone, and "
            "the attacks are on those (Method.averaged)"
        )
    return of


def choose(folder: RunFolder, client: int | None, *, trust: Trust) -> Victim:
    """The victim `client` (else the first that took part) of a run; RunError says why not."""
    folder.check_exists()
    if not folder.checkpoint.is_dir():
        raise RunError(f"{folder.path} has no checkpoint/, and the attacks need the models in it")
    left = restore.load(folder, trust=trust)
    if not left.took_part:
        raise RunError(f"{folder.path} has no complete round yet")
    number = left.took_part[0] if client is None else client
    if not 0 <= number < left.experiment.task.num_clients:
        raise ConfigError(f"--client {number}: there are {left.experiment.task.num_clients}")
    if number not in left.took_part:
        raise ConfigError(f"--client {number} has not taken part in the run")
    victim = Victim(folder, left, left.client(number))
    averaged(victim.method, victim.client)  # before anything else is computed
    return victim


def find(chosen: Victim, seed: int) -> Subject:
    """The victim and its attackers; RunError says why not."""
    left, victim, number = chosen.left, chosen.client, chosen.client.id
    labels = _attacked(left, number)
    auxiliary = others_samples(chosen, labels, seed)
    predict = chosen.method.logits
    members, held_out = own_samples(chosen, labels)

    def loss(on: Examples) -> Tensor:
        logits = outputs(victim, lambda x: predict(victim, x), on)
        return cross_entropy(logits, on.labels, reduction="none")

    def seen_by(client: Client) -> list[Tensor]:
        return [vectors(chosen.method, client, on) for on in (members, held_out, auxiliary)]

    seen = seen_by(victim)
    others = [left.client(other) for other in _accomplices(left, number, labels)]
    theirs = [
        seen_by(other)
        for other in others
        if not torch.equal(vectors(chosen.method, other, held_out), seen[1])
    ]

    def scene(networks: list[list[Tensor]], see: See | None = None) -> Scene:
        guessed = [torch.stack([network[part] for network in networks]) for part in range(3)]
        return Scene(
            Knowledge(_numbers(auxiliary, labels), guessed[2], images(auxiliary), see),
            Samples(_numbers(members, labels), seen[0], guessed[0].mean(0), images(members)),
            Samples(_numbers(held_out, labels), seen[1], guessed[1].mean(0), images(held_out)),
        )

    return Subject(
        victim=chosen,
        labels=labels,
        known=scene([seen], _sight(left, victim)),
        unknown=scene(theirs) if theirs else None,
        loss_members=loss(members),
        loss_held_out=loss(held_out),
    )


def _sight(left: Checkpoint, victim: Client) -> See | None:
    """The victim's network for images in [0, 1]; None where those are not its inputs."""
    shape = left.experiment.task.input_shape
    if not is_image(left.experiment.source.x) or max(shape[1:]) > MAX_IMAGE:
        return None
    of = averaged(left.blueprint.method, victim)
    return lambda images: of(to_input(2 * images.to(victim.device) - 1)).cpu()


def is_image(x: Tensor) -> bool:
    """Whether inputs are pictures in grey or in colour."""
    return x.dtype == torch.uint8 and x.ndim == 4 and x.shape[1] in (1, 3)


def images(examples: Examples) -> Tensor | None:
    """Pixels in [0, 1]; None when the data are no images."""
    if not is_image(examples.x):
        return None
    made = examples.x[examples.index].float() / 255
    height, width = (min(side, MAX_IMAGE) for side in made.shape[2:])
    return adaptive_avg_pool2d(made, (height, width)).contiguous()


def _attacked(left: Checkpoint, number: int) -> list[int]:
    """The victim's classes of which somebody else has samples, too."""
    counts = left.experiment.counts()
    elsewhere = counts.sum(0) - counts[number]
    train = left.blueprint.partition.indices(number)[0]
    own = left.experiment.source.y[train].bincount(minlength=len(elsewhere))
    enough = ((own >= LEAST) & (elsewhere >= LEAST)).nonzero().flatten().tolist()
    if not enough:
        raise RunError(
            f"client {number} has no class with {LEAST} training samples of which other clients "
            f"have {LEAST}, too: the attacker would have nothing to learn from; choose another "
            "--client"
        )
    return enough[:MAX_CLASSES]


def own_samples(victim: Victim, labels: list[int]) -> tuple[Examples, Examples]:
    """The victim's training samples of these classes, and its other samples of them."""
    data = victim.client.data
    held_out = torch.cat([data.validation.index, data.test.index])
    return _of(data.train, labels), _of(Examples(data.train.x, data.train.y, held_out), labels)


def others_samples(victim: Victim, labels: list[int], seed: int) -> Examples:
    """Other clients' samples of these classes."""
    left, number = victim.left, victim.client.id
    most = MAX_AUXILIARY * MAX_CLASSES // max(MAX_CLASSES, len(labels))
    pool = left.experiment.source
    theirs = torch.ones(len(pool), dtype=torch.bool)
    theirs[torch.cat(left.experiment.partition.indices(number))] = False
    rows = []
    for label in labels:
        some = (theirs & (pool.y == label)).nonzero().flatten()
        order = torch.randperm(len(some), generator=stream(seed, "auxiliary", number, label))
        rows.append(some[order[:most]])
    return Examples(pool.x, pool.y, torch.cat(rows))


def _accomplices(left: Checkpoint, number: int, labels: list[int]) -> list[int]:
    """Other clients whose networks the attacker has: those that know most of the classes first."""
    counts = left.experiment.counts()
    shared = (counts[:, labels] > 0).sum(1).tolist()
    others = [other for other in left.took_part if other != number]
    return sorted(others, key=lambda other: -shared[other])[:MAX_OTHERS]


def _of(examples: Examples, labels: list[int]) -> Examples:
    """Those of some classes."""
    rows = examples.index[torch.isin(examples.labels, torch.tensor(labels))]
    return Examples(examples.x, examples.y, rows)


def _numbers(examples: Examples, labels: list[int]) -> Tensor:
    """The place of each label among the attacked ones."""
    return torch.searchsorted(torch.tensor(labels), examples.labels)


def vectors(method: Method, client: Client, on: Examples) -> Tensor:
    """What the client would summarise of each of these samples."""
    return outputs(client, averaged(method, client), on).double()
