"""An image from a class mean: the best linear estimate.

The attacker knows of its own samples how images and vectors vary together within a class. From the
vector it estimates how the mean image of the n samples behind it differs from the class mean that
it knows anyway: x̂ = μₓ + Cₓᵣ (Cᵣ + n·σ²·I + λ·I)⁻¹ (r - μᵣ), where σ² is the variance of the noise
that was added to the vector. For vectors and images that are jointly Gaussian no estimate has a
smaller squared error, and means of many samples come close to that. λ is what works best in a
rehearsal. Without the victim's network, those of others take its place; what they disagree about
counts as spread, so that an attacker who can know nothing falls back to the class mean.

A single sample's vector without noise allows more, to who has the network: `audit.refine`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.audit.images import psnr, ssim
from fedgh.audit.noise import Level
from fedgh.audit.refine import refine
from fedgh.audit.scene import (
    Geometry,
    Knowledge,
    Samples,
    Scene,
    See,
    SentMeans,
    send,
    smallest_class,
)

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 1e2, 1e4)
"""λ in units of the mean variance; with the largest nothing but the class mean is left."""

SMOOTH = (0.1, 1.0, 3.0)
"""Weights of smoothness that are tried when a single sample's image is refined."""

REHEARSALS = 40
FEW = 12
"""Of them, when an image is refined: that takes longer."""


@dataclass(frozen=True)
class Decoder:
    """From vectors to images."""

    geometry: Geometry
    means: Tensor  # [classes, channels, height, width]
    cross: Tensor  # [width of vectors, pixels]: how images vary along each direction of the vectors

    @classmethod
    def of(cls, own: Knowledge) -> "Decoder":
        """What the attacker's own samples teach."""
        assert own.images is not None, "there are images to learn from"
        geometry = Geometry.of(own)
        means = torch.stack(
            [own.images[own.labels == label].mean(0) for label in range(len(geometry.means))]
        )
        around = (own.images - means[own.labels]).flatten(1)
        places = geometry.coordinates(own.vectors, own.labels).mean(0).to(around.dtype)
        return cls(geometry, means, places.T @ around / len(around))

    def decode(self, sent: SentMeans, ridge: float) -> Tensor:
        """The mean image of the samples behind each vector."""
        noise = (sent.sizes * sent.std**2)[:, None] + ridge * self.geometry.scale
        places = self.geometry.coordinates(sent.vectors, sent.labels)
        weighted = (places / (self.geometry.variances + noise)).to(self.cross.dtype)
        means = self.means[sent.labels]
        return (means + (weighted @ self.cross).view_as(means)).clamp(0, 1)


@dataclass(frozen=True)
class Likeness:
    """How near images come to those behind an upload."""

    psnr: Tensor  # [m], to the mean image
    ssim: Tensor  # [m], to the mean image
    nearest: Tensor  # [m], PSNR to the one sample that is most like it


def likeness(made: Tensor, truth: Tensor, sent: SentMeans, samples: Samples) -> Likeness:
    """Compare an image for each vector with the mean image, and with the samples behind it."""
    images = samples.images
    assert images is not None, "there are images to compare with"
    pairs = zip(made, sent.rows, strict=True)
    nearest = torch.stack([psnr(image, images[rows]).max() for image, rows in pairs])
    return Likeness(psnr(made, truth), ssim(made, truth), nearest)


def behind(sent: SentMeans, samples: Samples) -> Tensor:
    """The mean images of the samples behind an upload."""
    images = samples.images
    assert images is not None, "there are images behind it"
    return torch.stack([images[rows].mean(0) for rows in sent.rows])


@dataclass(frozen=True)
class Reconstruction:
    """An attacker that has learned from its own data, and can rehearse with them."""

    decoder: Decoder
    rehearsing: Decoder
    played: Samples
    see: See | None

    @classmethod
    def of(cls, scene: Scene, rng: torch.Generator) -> "Reconstruction":
        """Learn."""
        small, own = scene.rehearsal(rng), scene.attacker
        return cls(Decoder.of(own), Decoder.of(small.attacker), small.victim, own.see)

    def attack(self, sent: SentMeans, level: Level, rng: torch.Generator) -> Tensor:
        """An image for each vector, after a rehearsal with as many samples and as much noise."""
        size = min(int(sent.sizes.min()), smallest_class(self.played))
        tried = send(self.played, size, level, REHEARSALS, rng)
        truth = behind(tried, self.played)
        drafts = [self.rehearsing.decode(tried, ridge) for ridge in RIDGES]
        best = _best(drafts, truth)
        images = self.decoder.decode(sent, RIDGES[best])
        if self.see is None or not level.open or int(sent.sizes.max()) > 1:
            return images
        see, learned = self.see, self.rehearsing.geometry
        some = torch.linspace(0, len(truth) - 1, FEW).long()  # of all classes
        draft, vectors = drafts[best][some], tried.vectors[some]
        finer = [refine(draft, vectors, see, learned, smooth) for smooth in SMOOTH]
        choice = _best([draft, *finer], truth[some])
        if choice == 0:
            return images
        return refine(images, sent.vectors, see, self.decoder.geometry, SMOOTH[choice - 1])

    def without(self, sent: SentMeans) -> Tensor:
        """What the attacker would say of each vector without having seen it: its class mean."""
        return self.decoder.means[sent.labels]


def _best(tries: list[Tensor], truth: Tensor) -> int:
    quality = [float(psnr(images, truth).mean()) for images in tries]
    return quality.index(max(quality))
