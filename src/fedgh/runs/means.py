"""Class means that the server receives, stored for a few rounds to show how classes move."""

from dataclasses import dataclass, field

import torch

from fedgh.core.types import Payload, Upload

MAX_ROUNDS = 20
"""Approximate number of rounds whose class means are stored, spread evenly over a run."""


def stores_means(round: int, rounds: int) -> bool:
    """Return whether the class means of this round are stored: first, last and some between."""
    return round in (1, rounds) or round % -(-rounds // MAX_ROUNDS) == 0


MAX_PAIRS = 5000
"""Maximum number of class means stored for one round; a federation may have many more."""


@dataclass
class MeansCollector:
    """Collects the class means in the uploads of a round, if the method sends any."""

    _clients: list[torch.Tensor] = field(default_factory=list)
    _classes: list[torch.Tensor] = field(default_factory=list)
    _means: list[torch.Tensor] = field(default_factory=list)
    _remaining: int = MAX_PAIRS

    def add(self, upload: Upload) -> None:
        """Add the class means of an upload, if it has the form of `core.local.class_means`."""
        classes, means = upload.payload.get("classes"), upload.payload.get("means")
        if classes is None or means is None or not self._fits(classes, means):
            return
        classes, means = classes[: self._remaining], means[: self._remaining]
        self._remaining -= len(classes)
        self._clients.append(torch.full_like(classes, upload.client_id))
        self._classes.append(classes)
        self._means.append(means)

    def _fits(self, classes: torch.Tensor, means: torch.Tensor) -> bool:
        """Return whether types and shapes are those of class means; a method may send others."""
        width = self._means[0].shape[1:] if self._means else means.shape[1:]
        return (
            classes.dtype == torch.int32
            and means.dtype == torch.float32
            and classes.ndim == 1
            and means.shape == (len(classes), *width)
            and len(width) == 1
        )

    @property
    def empty(self) -> bool:
        """True if no upload had class means."""
        return not self._means

    def payload(self) -> Payload:
        """Return `means` [n, width], with the `clients` [n] and `classes` [n] they belong to."""
        return {
            "clients": torch.cat(self._clients),
            "classes": torch.cat(self._classes),
            "means": torch.cat(self._means),
        }
