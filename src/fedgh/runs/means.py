"""Class means that the server receives, kept for a few rounds: where the classes lie, over time."""

from dataclasses import dataclass, field

import torch

from fedgh.core.types import Payload, Upload

MAX_ROUNDS = 20
"""About how many rounds of a run are kept, spread evenly over it."""


def worth_keeping(round: int, rounds: int) -> bool:
    """Whether a picture of this round is wanted: the first, the last, and some between."""
    return round in (1, rounds) or round % -(-rounds // MAX_ROUNDS) == 0


MAX_PAIRS = 5000
"""Class means kept of one round; a federation may have many more."""


@dataclass
class Album:
    """Collects the class means among the uploads of a round, if the method sends any."""

    _clients: list[torch.Tensor] = field(default_factory=list)
    _classes: list[torch.Tensor] = field(default_factory=list)
    _means: list[torch.Tensor] = field(default_factory=list)
    _room: int = MAX_PAIRS

    def add(self, upload: Upload) -> None:
        """Take the class means of an upload, in the form of `core.local.class_means`."""
        classes, means = upload.payload.get("classes"), upload.payload.get("means")
        if classes is None or means is None or not self._alike(classes, means):
            return
        classes, means = classes[: self._room], means[: self._room]
        self._room -= len(classes)
        self._clients.append(torch.full_like(classes, upload.client_id))
        self._classes.append(classes)
        self._means.append(means)

    def _alike(self, classes: torch.Tensor, means: torch.Tensor) -> bool:
        """Whether these can be put beside those that are here; another method's may be anything."""
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
        """Whether there is nothing to look at."""
        return not self._means

    def payload(self) -> Payload:
        """`means` [n, width], and the `clients` [n] and `classes` [n] they belong to."""
        return {
            "clients": torch.cat(self._clients),
            "classes": torch.cat(self._classes),
            "means": torch.cat(self._means),
        }
