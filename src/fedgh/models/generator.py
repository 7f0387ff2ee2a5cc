"""Generators: networks that a server trains to make samples from noise, and losses for them."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot

from fedgh.core.rng import isolated
from fedgh.core.types import Payload, Task


class Representations(nn.Module):
    """A generator that maps noise and a class to a representation, as in FedGen.

    The buffer `labels` [classes] is the distribution of the classes that it is trained for.
    """

    def __init__(self, classes: int, width: int, noise: int, hidden: int) -> None:
        super().__init__()
        self.noise = noise
        self.labels: Tensor
        self.register_buffer("labels", torch.full((classes,), 1 / classes))
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, width),
        )

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        """Return a representation of each class in y, [batch, width]."""
        out: Tensor = self.layers(torch.cat([noise, one_hot(y, len(self.labels))], dim=1))
        return out

    def sample(self, y: Tensor, rng: torch.Generator) -> Tensor:
        """Return a representation of each class in y, made from new noise."""
        out: Tensor = self(self.draw_noise(len(y), rng), y)
        return out

    def draw_noise(self, size: int, rng: torch.Generator) -> Tensor:
        """Return standard normal noise, [size, noise]."""
        return torch.randn(size, self.noise, generator=rng).to(self.labels.device)

    def draw_labels(self, size: int, rng: torch.Generator) -> Tensor:
        """Return random classes, distributed as `labels`, [size]."""
        drawn = torch.multinomial(self.labels.cpu(), size, replacement=True, generator=rng)
        return drawn.to(self.labels.device)


def of_representations(task: Task, noise: int, hidden: int) -> Representations:
    """Return a generator of representations with initial weights that all parties know."""
    with isolated(task.seed, "representation-generator"):
        return Representations(task.num_classes, task.rep_dim, noise, hidden)


Ensemble = Literal["losses", "logits"]
"""The values of several headers that are averaged: their losses, or their logits."""


def agreement_loss(
    made: Representations,
    headers: Sequence[Payload],
    counts: Tensor,
    ensemble: Ensemble,
    eta: float,
    size: int,
    rng: torch.Generator,
) -> Tensor:
    """Return the loss of a generator of representations on `size` new samples.

    It is low if the headers assign the samples to the wanted classes and, with the weight `eta`, if
    the samples differ. `counts` [headers, classes] are the training samples behind each header.
    """
    y, noise = made.draw_labels(size, rng), made.draw_noise(size, rng)
    r = made(noise, y)
    logits = torch.stack([linear(r, header["weight"], header["bias"]) for header in headers])
    return headers_loss(logits, y, counts, ensemble) + eta * diversity_loss(noise, r)


def headers_loss(logits: Tensor, y: Tensor, counts: Tensor, ensemble: Ensemble) -> Tensor:
    """Return the cross-entropy of the logits [headers, batch, classes] of several headers.

    The loss of a sample is the mean of the headers' losses, weighted by the `counts` [headers,
    classes] of its class, or the loss of their mean logits.
    """
    if ensemble == "logits":
        return cross_entropy(logits.mean(dim=0), y)
    losses = torch.stack([cross_entropy(each, y, reduction="none") for each in logits])
    weights = counts[:, y] / counts[:, y].sum(dim=0)
    return (weights * losses).sum(dim=0).mean()


def diversity_loss(noise: Tensor, made: Tensor) -> Tensor:
    """Return a loss that is lower the more samples differ that were made from different noise.

    It is exp(-mean(a b)) over all pairs of samples, also of each with itself: a is the mean squared
    difference of their noise, b the mean absolute difference of the samples.
    """
    of_noise = (noise[:, None] - noise).square().mean(dim=2)
    of_made = (made[:, None] - made).abs().mean(dim=2)
    return (-(of_noise * of_made).mean()).exp()
