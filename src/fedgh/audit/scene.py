"""Who attacks whom, in tensors: what the attacker has, and what it is after."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgh.audit.noise import Level, clipped

See = Callable[[Tensor], Tensor]
"""A network: from images in [0, 1] to vectors, with gradients."""


@dataclass(frozen=True)
class Samples:
    """Samples of the victim, and what the attacker makes of them when it meets one."""

    labels: Tensor  # [n], numbers of the attacked classes
    vectors: Tensor  # [n, width]: what the victim's network makes of them
    guesses: Tensor  # [n, width]: what the attacker takes that for; the same if it has the network
    images: Tensor | None = None  # [n, channels, height, width] in [0, 1]
    clip: float = math.inf  # no vector is longer

    def __len__(self) -> int:
        return len(self.labels)

    def clipped(self, clip: float) -> "Samples":
        """The same with shorter vectors."""
        vectors, guesses = clipped(self.vectors, clip), clipped(self.guesses, clip)
        return replace(self, vectors=vectors, guesses=guesses, clip=clip)

    def choose(self, rows: Tensor) -> "Samples":
        """Some of them."""
        images = None if self.images is None else self.images[rows]
        return replace(
            self,
            labels=self.labels[rows],
            vectors=self.vectors[rows],
            guesses=self.guesses[rows],
            images=images,
        )


@dataclass(frozen=True)
class Knowledge:
    """The attacker's own samples, and what the networks that it has make of them."""

    labels: Tensor  # [n]
    vectors: Tensor  # [networks, n, width]
    images: Tensor | None = None  # [n, channels, height, width] in [0, 1]
    see: See | None = None  # the victim's network, if it has that and there are images

    def choose(self, rows: Tensor) -> "Knowledge":
        """Some of the samples."""
        images = None if self.images is None else self.images[rows]
        return Knowledge(self.labels[rows], self.vectors[:, rows], images, self.see)


@dataclass(frozen=True)
class Scene:
    """An attacker and its victim."""

    attacker: Knowledge
    victim: Samples  # its training samples
    held_out: Samples  # samples that it has, too, but did not train on

    def rehearsal(self, rng: torch.Generator) -> "Scene":
        """The same in small, with what the attacker has alone: to find out what works.

        Half of its samples play the victim. So does the first of its networks, if it has others.
        """
        own = self.attacker
        order = torch.randperm(len(own.labels), generator=rng)
        known, played = own.choose(order[::2]), own.choose(order[1::2])
        left = slice(1, None) if len(own.vectors) > 1 else slice(None)
        guesses = played.vectors[left].mean(0)
        victim = Samples(played.labels, played.vectors[0], guesses, played.images, self.victim.clip)
        nobody = victim.choose(torch.arange(0))
        return Scene(replace(known, vectors=known.vectors[left]), victim, nobody)

    def clipped(self, clip: float) -> "Scene":
        """The same with shorter vectors."""
        own = replace(self.attacker, vectors=clipped(self.attacker.vectors, clip))
        return Scene(own, self.victim.clipped(clip), self.held_out.clipped(clip))


@dataclass(frozen=True)
class Geometry:
    """Where the classes lie for the attacker, and how samples spread around their class mean."""

    means: Tensor  # [classes, width]
    basis: Tensor  # [width, width]: the columns are the directions of the spread
    variances: Tensor  # [width], along each direction

    @classmethod
    def of(cls, own: Knowledge) -> "Geometry":
        """One spread for all classes, over all samples and networks."""
        classes = int(own.labels.max()) + 1
        means = torch.stack(
            [own.vectors[:, own.labels == label].mean((0, 1)) for label in range(classes)]
        )
        around = (own.vectors - means[own.labels]).flatten(0, 1)
        spread = around.T @ around / max(1, len(around) - classes)
        variances, basis = torch.linalg.eigh(spread)
        return cls(means, basis, variances.clamp(min=0))

    @property
    def scale(self) -> float:
        """The mean variance: what is small beside it is small. Never 0."""
        return max(float(self.variances.mean()), 1e-12)

    def coordinates(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """How far from its class mean each vector lies, along each direction."""
        return (vectors - self.means[labels]) @ self.basis


@dataclass(frozen=True)
class SentMeans:
    """Class means as they arrive, and the samples behind each."""

    rows: list[Tensor]
    labels: Tensor  # [m]
    sizes: Tensor  # [m]
    std: Tensor  # [m], of the noise
    vectors: Tensor  # [m, width], with the noise


def send(
    samples: Samples, size: int | None, level: Level, count: int, rng: torch.Generator
) -> SentMeans:
    """About `count` means over random choices of `size` samples of a class, as many for each class.

    Without a size: over all samples of each class, once. A class with fewer samples is left out.
    """
    rows: list[Tensor] = []
    labels: list[int] = []
    present = samples.labels.unique().tolist()
    for label in present:
        own = (samples.labels == label).nonzero().flatten()
        times = 1 if size is None else -(-count // len(present)) * (len(own) >= size)
        rows += [own[torch.randperm(len(own), generator=rng)[:size]] for _ in range(times)]
        labels += [label] * times
    sizes = torch.tensor([len(some) for some in rows], dtype=torch.long)
    std = level.std(sizes, samples.clip, len(present))
    means = torch.stack([samples.vectors[some].mean(0) for some in rows])
    noise = torch.randn(means.shape, generator=rng, dtype=means.dtype)
    return SentMeans(rows, torch.tensor(labels), sizes, std, means + std[:, None] * noise)


def smallest_class(samples: Samples) -> int:
    """How many samples the smallest of their classes has."""
    return int(samples.labels.unique(return_counts=True)[1].min())
