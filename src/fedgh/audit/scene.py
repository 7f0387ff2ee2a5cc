"""An attack on class means as tensors: the attacker's data, and the target client's samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgh.audit.noise import Level, clipped

ImageNetwork = Callable[[Tensor], Tensor]
"""A network as a function from images in [0, 1] to vectors, through which gradients can flow."""


@dataclass(frozen=True)
class Samples:
    """Samples of the target client, with their true vectors and the attacker's estimates of them.

    An attacker that has the target client's network computes the true vectors.
    """

    labels: Tensor  # [n], numbers of the attacked classes
    vectors: Tensor  # [n, width]: outputs of the target client's network
    estimates: Tensor  # [n, width]: outputs of the attacker's networks, averaged
    images: Tensor | None = None  # [n, channels, height, width] in [0, 1]
    clip: float = math.inf  # upper bound of the length of the vectors

    def __len__(self) -> int:
        return len(self.labels)

    def clipped(self, clip: float) -> "Samples":
        """Return the samples with vectors and estimates of a length of at most `clip`."""
        vectors, estimates = clipped(self.vectors, clip), clipped(self.estimates, clip)
        return replace(self, vectors=vectors, estimates=estimates, clip=clip)

    def choose(self, rows: Tensor) -> "Samples":
        """Return the samples with these indices."""
        images = None if self.images is None else self.images[rows]
        return replace(
            self,
            labels=self.labels[rows],
            vectors=self.vectors[rows],
            estimates=self.estimates[rows],
            images=images,
        )


@dataclass(frozen=True)
class AttackerData:
    """The attacker's own samples, and the outputs of the networks that it has for them."""

    labels: Tensor  # [n]
    vectors: Tensor  # [networks, n, width]
    images: Tensor | None = None  # [n, channels, height, width] in [0, 1]
    # The target client's network, if the attacker has it and its inputs are images.
    network: ImageNetwork | None = None

    def choose(self, rows: Tensor) -> "AttackerData":
        """Return the data of the samples with these indices."""
        images = None if self.images is None else self.images[rows]
        return AttackerData(self.labels[rows], self.vectors[:, rows], images, self.network)


@dataclass(frozen=True)
class Scene:
    """An attacker and the samples of its target client."""

    attacker: AttackerData
    target: Samples  # the target client's training samples
    held_out: Samples  # the target client's validation and test samples

    def rehearsal(self, rng: torch.Generator) -> "Scene":
        """Return a smaller scene made of the attacker's data only, on which it tunes its attack.

        Half of its samples stand for the target client's. If it has several networks, then the
        first of them stands for the target client's network.
        """
        own = self.attacker
        order = torch.randperm(len(own.labels), generator=rng)
        known, substitute = own.choose(order[::2]), own.choose(order[1::2])
        networks = slice(1, None) if len(own.vectors) > 1 else slice(None)
        estimates = substitute.vectors[networks].mean(0)
        target = Samples(
            substitute.labels,
            substitute.vectors[0],
            estimates,
            substitute.images,
            self.target.clip,
        )
        no_samples = target.choose(torch.arange(0))
        return Scene(replace(known, vectors=known.vectors[networks]), target, no_samples)

    def clipped(self, clip: float) -> "Scene":
        """Return the scene with all vectors clipped to a length of at most `clip`."""
        own = replace(self.attacker, vectors=clipped(self.attacker.vectors, clip))
        return Scene(own, self.target.clipped(clip), self.held_out.clipped(clip))


@dataclass(frozen=True)
class Geometry:
    """The attacker's class means, and the covariance of vectors around them."""

    means: Tensor  # [classes, width]
    basis: Tensor  # [width, width]: the columns are the eigenvectors of the covariance
    variances: Tensor  # [width]: the eigenvalues

    @classmethod
    def of(cls, own: AttackerData) -> "Geometry":
        """Measure one covariance for all classes, over all samples and networks."""
        classes = int(own.labels.max()) + 1
        means = torch.stack(
            [own.vectors[:, own.labels == label].mean((0, 1)) for label in range(classes)]
        )
        deviations = (own.vectors - means[own.labels]).flatten(0, 1)
        covariance = deviations.T @ deviations / max(1, len(deviations) - classes)
        variances, basis = torch.linalg.eigh(covariance)
        return cls(means, basis, variances.clamp(min=0))

    @property
    def scale(self) -> float:
        """The mean variance, never 0: the unit in which ridges and floors are given."""
        return max(float(self.variances.mean()), 1e-12)

    def coordinates(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return each vector's deviation from its class mean, along each eigenvector."""
        return (vectors - self.means[labels]) @ self.basis


@dataclass(frozen=True)
class SentMeans:
    """Class means as the server receives them, and the samples behind each."""

    rows: list[Tensor]  # indices of the samples behind each mean
    labels: Tensor  # [m]
    sizes: Tensor  # [m], numbers of samples
    std: Tensor  # [m], standard deviations of the noise
    vectors: Tensor  # [m, width], with the noise


def send_means(
    samples: Samples, size: int | None, level: Level, count: int, rng: torch.Generator
) -> SentMeans:
    """Return about `count` means of `size` random samples of one class, as many for each class.

    A class with fewer than `size` samples has no mean. If `size` is None, then there is one mean
    of all samples for each class.
    """
    rows: list[Tensor] = []
    labels: list[int] = []
    present = samples.labels.unique().tolist()
    for label in present:
        own = (samples.labels == label).nonzero().flatten()
        times = 1 if size is None else -(-count // len(present)) * (len(own) >= size)
        rows += [own[torch.randperm(len(own), generator=rng)[:size]] for _ in range(times)]
        labels += [label] * times
    sizes = torch.tensor([len(chosen) for chosen in rows], dtype=torch.long)
    std = level.std(sizes, samples.clip, len(present))
    means = torch.stack([samples.vectors[chosen].mean(0) for chosen in rows])
    noise = torch.randn(means.shape, generator=rng, dtype=means.dtype)
    return SentMeans(rows, torch.tensor(labels), sizes, std, means + std[:, None] * noise)


def smallest_class(samples: Samples) -> int:
    """Return the number of samples of the class that has the fewest."""
    return int(samples.labels.unique(return_counts=True)[1].min())
