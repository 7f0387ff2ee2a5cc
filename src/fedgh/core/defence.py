"""What a few poisoned clients can do to a server, bounded.

Uploads are checked one by one before they come here (`core.wire`); what only shows beside the
others' is dealt with here. A class mean is set against those of the same class from other clients:
the shared header pulls all extractors towards one geometry, so the means of a class point the same
way whoever made them, and one that carries the wrong label points elsewhere. And nobody counts
more than a few times as much as is usual.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from pydantic import ConfigDict, Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedgh.core.types import Payload, Upload

FEWEST = 3
"""Owners of a class among whom an outlier can be told: of two, either may be the odd one."""


@dataclass(frozen=True)
class Defence:
    """Both are off at 0. With either of them a round waits for its last upload."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    agreement: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Class means that agree less with the others of their class are left out. (The cosine of the
    angle between a mean and the median of the others, both as seen from the middle of all
    classes: about 0 for what has nothing to do with the class.) While most do not agree, in the
    first rounds, before the extractors have come together, nothing is left out."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """The norm of a class mean, and the number of samples it or its client claims, count at most
    this many times the median of the round."""

    def apply(self, uploads: Iterable[Upload], dropped: "Dropped") -> Iterator[Upload]:
        """The uploads that the server's method may see, in the same order."""
        if not (self.agreement or self.clip):
            yield from uploads
            return
        said = list(uploads)
        if self.agreement:
            said = _without_outliers(said, self.agreement, dropped)
        if self.clip:
            said = _clipped(said, self.clip)
        yield from said


@dataclass
class Dropped:
    """The class means of a round that were left out: by client, their labels."""

    classes: dict[int, list[int]] = field(default_factory=dict)


def _without_outliers(uploads: list[Upload], least: float, dropped: Dropped) -> list[Upload]:
    labels = [upload.payload["classes"] for upload in uploads]
    if not any(map(len, labels)):
        return uploads
    found = agreement(torch.cat(labels), torch.cat([u.payload["means"] for u in uploads]))
    if _median(found) < least:
        return uploads
    agreed = found >= least
    kept: list[Upload] = []
    for upload, own, fine in zip(
        uploads, labels, agreed.split([len(own) for own in labels]), strict=True
    ):
        if not fine.all():
            dropped.classes[upload.client_id] = own[~fine].tolist()
        kept.append(replace(upload, payload={n: t[fine] for n, t in upload.payload.items()}))
    return kept


def agreement(classes: Tensor, means: Tensor) -> Tensor:
    """How far each mean points the way of the others of its class, [pairs]; 1 where none can say.

    The median of the others, number by number, moves little as long as most of them are honest.
    """
    out = torch.ones(len(classes), dtype=torch.float64)
    if not len(classes):
        return out
    directions = normalize(means.double(), dim=1)
    groups = [(classes == label).nonzero().flatten() for label in classes.unique()]
    middle = torch.stack([_median(directions[rows]) for rows in groups]).mean(0)
    for rows in groups:
        if len(rows) >= FEWEST:
            own = directions[rows]
            out[rows] = cosine_similarity(own - middle, _median_of_others(own) - middle, dim=1)
    return out


def _median(rows: Tensor) -> Tensor:
    """Number by number; of two in the middle their mean. (torch's own takes the lower one.)"""
    ordered = rows.sort(dim=0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def _median_of_others(rows: Tensor) -> Tensor:
    """For each row the median, number by number, of all the other rows.

    Without the value of rank p, rank i is held by the value that was at i, or from p on at i + 1.
    """
    ordered, order = rows.sort(dim=0)
    rank = order.argsort(dim=0)
    middle = ((len(rows) - 2) // 2, (len(rows) - 1) // 2)
    low, high = (ordered.gather(0, at + (rank <= at).long()) for at in middle)
    return (low + high) / 2


def _clipped(uploads: list[Upload], clip: float) -> list[Upload]:
    """Each number that says how much something counts, at most `clip` times its median."""
    payloads = [upload.payload for upload in uploads]
    norm = _most([p["means"].norm(dim=1) for p in payloads if "means" in p], clip)
    count = _most([p["counts"] for p in payloads if "counts" in p], clip)
    examples = _most([torch.tensor([upload.num_examples]) for upload in uploads], clip)
    return [
        replace(
            upload,
            num_examples=min(upload.num_examples, max(1, int(examples))),
            payload=_smaller(upload.payload, norm, int(count)),
        )
        for upload in uploads
    ]


def _most(values: list[Tensor], clip: float) -> float:
    all_values = torch.cat(values).double() if values else torch.zeros(0)
    return clip * float(_median(all_values)) if len(all_values) else 0.0


def _smaller(payload: Payload, norm: float, count: int) -> Payload:
    out = dict(payload)
    if "means" in payload:
        out["means"] = torch.renorm(payload["means"], 2, 0, norm)
    if "counts" in payload:
        out["counts"] = payload["counts"].clamp(max=max(1, count))
    return out
