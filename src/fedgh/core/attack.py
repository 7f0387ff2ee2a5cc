"""Simulated poisoning attacks: malicious clients train honestly but send false class means."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field

from fedgh.core.types import Client, Payload

AttackKind = Literal["flip", "noise", "scale", "everything"]


@dataclass(frozen=True)
class Attack:
    """Attack settings: the first `clients` clients send poisoned uploads of one kind."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    clients: Annotated[int, Field(ge=0)] = 0  # number of malicious clients
    # "flip": wrong labels; "noise": random means; "scale": longer means; "everything": random
    # means for all classes, also those that the client does not have
    kind: AttackKind = "flip"  # other labels, noise, longer means, or noise for all classes
    strength: Annotated[float, Field(gt=0)] = 10.0  # multiple of the honest norm; unused by "flip"

    def count_named_classes(self, client_id: int, held: int, num_classes: int) -> int:
        """Return the number of classes in the upload of a client that holds `held` classes."""
        return num_classes if client_id < self.clients and self.kind == "everything" else held

    def poison(self, client: Client, upload: Payload) -> Payload:
        """Return the upload that the client sends: poisoned if the client is malicious."""
        if client.id >= self.clients:
            return upload
        if self.kind == "flip":  # each class gets the next label, so labels stay distinct
            return upload | {"classes": (upload["classes"] + 1) % client.task.num_classes}
        if self.kind == "everything":
            labels = torch.arange(client.task.num_classes, dtype=torch.int32)
            upload = {name: rows[labels % len(rows)] for name, rows in upload.items()}
            upload["classes"] = labels
        means = upload["means"]
        if self.kind == "scale":
            return upload | {"means": means * self.strength}
        noise = torch.randn(means.shape, generator=client.stream("attack"))
        norms = self.strength * means.norm(dim=1, keepdim=True)
        return upload | {"means": noise * (norms / noise.norm(dim=1, keepdim=True))}
