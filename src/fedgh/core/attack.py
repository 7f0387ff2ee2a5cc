"""Rehearsed attacks: some clients train honestly and lie about what they have learned."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field

from fedgh.core.types import Client, Payload

Kind = Literal["flip", "noise", "scale", "everything"]


@dataclass(frozen=True)
class Attack:
    """The first `clients` clients send poisoned class means, all of them the same kind."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    clients: Annotated[int, Field(ge=0)] = 0  # how many of them lie
    kind: Kind = "flip"  # other labels, noise, longer means, or noise for all classes
    strength: Annotated[float, Field(gt=0)] = 10.0  # of all but "flip": times the honest norm

    def names(self, client_id: int, held: int, num_classes: int) -> int:
        """How many classes a client that holds so many speaks about."""
        return num_classes if client_id < self.clients and self.kind == "everything" else held

    def poisoned(self, client: Client, upload: Payload) -> Payload:
        """What the client really sends."""
        if client.id >= self.clients:
            return upload
        if self.kind == "flip":  # every class takes the name of the next; no name comes up twice
            return upload | {"classes": (upload["classes"] + 1) % client.task.num_classes}
        if self.kind == "everything":  # noise for all classes, also those that it does not have
            every = torch.arange(client.task.num_classes, dtype=torch.int32)
            upload = {name: rows[every % len(rows)] for name, rows in upload.items()}
            upload["classes"] = every
        means = upload["means"]
        if self.kind == "scale":
            return upload | {"means": means * self.strength}
        noise = torch.randn(means.shape, generator=client.stream("attack"))
        norms = self.strength * means.norm(dim=1, keepdim=True)
        return upload | {"means": noise * (norms / noise.norm(dim=1, keepdim=True))}
