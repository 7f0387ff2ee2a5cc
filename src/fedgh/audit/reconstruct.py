"""Reconstruction of an image from a class mean: the best linear estimate.

From its own samples the attacker knows the covariances of images x and vectors r within a class.
From a vector it estimates the difference of the mean image of the n samples behind it from its own
mean image of the class: x̂ = μₓ + Cₓᵣ (Cᵣ + n·σ²·I + λ·I)⁻¹ (r - μᵣ), where σ² is the variance of
the noise on the vector. If vectors and images are jointly Gaussian, then no estimate has a smaller
squared error; means of many samples are nearly Gaussian. λ is the value that works best in a
rehearsal.

An attacker without the target client's network uses networks of other clients instead. Differences
between their outputs increase the variance, so that an attacker whose networks tell nothing returns
its own mean image of the class.

From a single sample's vector without noise, an attacker that has the network can reconstruct more:
see `audit.refine`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.audit.images import psnr, ssim
from fedgh.audit.noise import Level
from fedgh.audit.refine import refine
from fedgh.audit.scene import (
    AttackerData,
    Geometry,
    ImageNetwork,
    Samples,
    Scene,
    SentMeans,
    send_means,
    smallest_class,
)

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 1e2, 1e4)
"""λ in units of the mean variance; with the largest the estimate is the mean image of the class."""

SMOOTHNESS = (0.1, 1.0, 3.0)
"""Weights of smoothness that are tried when a single sample's image is refined."""

REHEARSALS = 40
REFINED_REHEARSALS = 12
"""Fewer rehearsals with refinement, because it takes longer."""


@dataclass(frozen=True)
class Decoder:
    """A linear map from vectors to images."""

    geometry: Geometry
    means: Tensor  # [classes, channels, height, width]: mean image of each class
    covariance: Tensor  # [width of vectors, pixels]: of vectors, along eigenvectors, with pixels

    @classmethod
    def of(cls, own: AttackerData) -> "Decoder":
        """Estimate the map from the attacker's own samples."""
        assert own.images is not None, "there are images to learn from"
        geometry = Geometry.of(own)
        means = torch.stack(
            [own.images[own.labels == label].mean(0) for label in range(len(geometry.means))]
        )
        deviations = (own.images - means[own.labels]).flatten(1)
        coordinates = geometry.coordinates(own.vectors, own.labels).mean(0).to(deviations.dtype)
        return cls(geometry, means, coordinates.T @ deviations / len(deviations))

    def decode(self, sent: SentMeans, ridge: float) -> Tensor:
        """Return an estimate of the mean image of the samples behind each vector."""
        noise = (sent.sizes * sent.std**2)[:, None] + ridge * self.geometry.scale
        coordinates = self.geometry.coordinates(sent.vectors, sent.labels)
        weighted = (coordinates / (self.geometry.variances + noise)).to(self.covariance.dtype)
        means = self.means[sent.labels]
        return (means + (weighted @ self.covariance).view_as(means)).clamp(0, 1)


@dataclass(frozen=True)
class Similarity:
    """The similarity of reconstructed images to the true images behind an upload."""

    psnr: Tensor  # [m], with the mean image
    ssim: Tensor  # [m], with the mean image
    nearest: Tensor  # [m], PSNR with the most similar sample


def similarity(made: Tensor, truth: Tensor, sent: SentMeans, samples: Samples) -> Similarity:
    """Compare each reconstructed image with the mean image and with each sample behind it."""
    images = samples.images
    assert images is not None, "there are images to compare with"
    pairs = zip(made, sent.rows, strict=True)
    nearest = torch.stack([psnr(image, images[rows]).max() for image, rows in pairs])
    return Similarity(psnr(made, truth), ssim(made, truth), nearest)


def mean_images(sent: SentMeans, samples: Samples) -> Tensor:
    """Return the mean image of the samples behind each vector."""
    images = samples.images
    assert images is not None, "the samples are images"
    return torch.stack([images[rows].mean(0) for rows in sent.rows])


@dataclass(frozen=True)
class ReconstructionAttack:
    """An attacker that has estimated a decoder from its own data, and can rehearse with them."""

    decoder: Decoder
    rehearsal_decoder: Decoder
    rehearsal_samples: Samples
    network: ImageNetwork | None

    @classmethod
    def of(cls, scene: Scene, rng: torch.Generator) -> "ReconstructionAttack":
        """Estimate decoders from all of the attacker's data, and from those of a rehearsal."""
        rehearsal, own = scene.rehearsal(rng), scene.attacker
        return cls(Decoder.of(own), Decoder.of(rehearsal.attacker), rehearsal.target, own.network)

    def attack(self, sent: SentMeans, level: Level, rng: torch.Generator) -> Tensor:
        """Return an image for each vector, with the settings that are best in a rehearsal.

        The rehearsal has as many samples behind a mean, and as much noise.
        """
        samples = self.rehearsal_samples
        size = min(int(sent.sizes.min()), smallest_class(samples))
        rehearsed = send_means(samples, size, level, REHEARSALS, rng)
        truth = mean_images(rehearsed, samples)
        decoded = [self.rehearsal_decoder.decode(rehearsed, ridge) for ridge in RIDGES]
        best = _best(decoded, truth)
        images = self.decoder.decode(sent, RIDGES[best])
        if self.network is None or not level.noiseless or int(sent.sizes.max()) > 1:
            return images
        network, geometry = self.network, self.rehearsal_decoder.geometry
        # Evenly spaced, so that samples of all classes are among them.
        rows = torch.linspace(0, len(truth) - 1, REFINED_REHEARSALS).long()
        draft, vectors = decoded[best][rows], rehearsed.vectors[rows]
        refined = [refine(draft, vectors, network, geometry, weight) for weight in SMOOTHNESS]
        choice = _best([draft, *refined], truth[rows])
        if choice == 0:  # refinement did not help in the rehearsal
            return images
        weight = SMOOTHNESS[choice - 1]
        return refine(images, sent.vectors, network, self.decoder.geometry, weight)

    def baseline(self, sent: SentMeans) -> Tensor:
        """Return the attacker's estimate without the upload: its own mean image of the class."""
        return self.decoder.means[sent.labels]


def _best(attempts: list[Tensor], truth: Tensor) -> int:
    quality = [float(psnr(images, truth).mean()) for images in attempts]
    return quality.index(max(quality))
