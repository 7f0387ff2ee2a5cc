"""What a few poisoned clients can do to a server, bounded.

Uploads are checked one by one before they come here (`core.wire`); what only shows beside the
others' is dealt with here. A class mean is set against those of the same class from other clients:
the shared header pulls all extractors towards one geometry, so the means of a class point the same
way whoever made them, and one that carries the wrong label points elsewhere. And nobody counts
more than a few times as much as is usual.

What is usual is the median over clients, to which each adds one number: a client that names
many classes has no more votes than one that names a single one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Annotated, ClassVar

import torch
from pydantic import ConfigDict, Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedgh.core.median import median, median_of_others
from fedgh.core.moments import Moments
from fedgh.core.types import Payload, Upload

FEWEST = 2
"""Votes of others against which a class mean can be judged: of two, either may be the odd one."""

BY_CLASS = ("classes", "means", "counts")
"""Tensors with a row for each class that a client names."""

VOTE = 2.0**20  # of a client for a class; a part of it is a whole number, too
TINY = 1e-300  # in place of a zero, to divide by
NONE = torch.zeros(0, dtype=torch.float64)


@dataclass(frozen=True)
class Defence:
    """Both are off at 0. With either of them a round waits for its last upload."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    agreement: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Class means that agree less with the others of their class are left out. (The cosine of the
    angle between a mean and the median of the others, both as seen from the middle of all
    clients: about 0 for what has nothing to do with the class.) While most clients do not agree
    with the others, in the first rounds, before the extractors have come together, nothing is
    left out."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """So many times what is usual is the most that these count: the norm of a class mean, and the
    sum of a client's norms; the number of samples claimed for a class, and the sum of a client's;
    the number of samples by which a client is weighed. Usual is the median over the round's
    clients that name a class: of their mean norms, of their sums of norms, and so on. Norms or
    numbers whose sum is too large all shrink by one factor. A number of samples stays at least 1,
    also where that makes a sum larger."""

    def apply(self, uploads: Iterable[Upload], dropped: "Dropped") -> Iterator[Upload]:
        """The uploads that the server's method may see, in the same order."""
        if not (self.agreement or self.clip):
            yield from uploads
            return
        said = list(uploads)
        if self.clip:
            said = _clipped(said, self.clip)
        if self.agreement:
            said = _without_outliers(said, self.agreement, dropped)
        yield from said


@dataclass
class Dropped:
    """The class means of a round that were left out: by client, their labels."""

    classes: dict[int, list[int]] = field(default_factory=dict)


def _without_outliers(uploads: list[Upload], least: float, dropped: Dropped) -> list[Upload]:
    found = agreement([upload.payload for upload in uploads])
    judged = [own[~own.isnan()] for own in found]
    usual = [median(own) for own in judged if len(own)]
    if not usual or median(torch.stack(usual)) < least:
        return uploads
    kept: list[Upload] = []
    for upload, own in zip(uploads, found, strict=True):
        fine = ~(own < least)
        if not fine.all():
            dropped.classes[upload.client_id] = upload.payload["classes"][~fine].tolist()
        rows = {n: t[fine] if n in BY_CLASS else t for n, t in upload.payload.items()}
        kept.append(replace(upload, payload=rows))
    return kept


def agreement(payloads: Sequence[Payload]) -> list[Tensor]:
    """How far each mean of each client points the way of the others of its class.

    Not a number where too few can say. The median of the others, number by number, moves little as
    long as most votes are honest.
    """
    sizes = torch.tensor([len(payload["classes"]) for payload in payloads])
    if not sizes.any():
        return [NONE for _ in payloads]
    votes = _votes(sizes).repeat_interleave(sizes)
    classes = torch.cat([payload["classes"] for payload in payloads])
    rows = normalize(torch.cat([payload["means"] for payload in payloads]).double(), dim=1)
    groups = [(classes == label).nonzero().flatten() for label in classes.unique()]
    middle = torch.zeros_like(rows[0])
    for own in groups:
        middle += votes[own].sum() / votes.sum() * median(rows[own], votes[own])
    out = rows.new_full((len(rows),), nan)
    for own in groups:
        if len(own) > FEWEST:
            others = median_of_others(rows[own], votes[own])
            heard = votes[own].sum() - votes[own] >= FEWEST * VOTE
            found = cosine_similarity(rows[own] - middle, others - middle, dim=1)
            out[own] = found.where(heard, nan)
    return list(out.split(sizes.tolist()))


def _votes(sizes: Tensor) -> Tensor:
    """Of each client for each of its classes: one, or less if it names more classes than is usual.

    So many does it have together then; whoever names all classes does not outvote their owners.
    """
    usual = median(sizes[sizes > 0].double())
    return (VOTE * usual / sizes).clamp(max=VOTE).floor()


def _clipped(uploads: list[Upload], clip: float) -> list[Upload]:
    """Each number that says how much something counts, bounded."""
    payloads = [upload.payload for upload in uploads]
    examples = _bounded([torch.tensor([upload.num_examples]) for upload in uploads], clip)
    norms = _bounded([_norms(payload) for payload in payloads], clip)
    counts = _bounded([payload.get("counts", NONE) for payload in payloads], clip)
    return [
        replace(
            upload,
            num_examples=min(upload.num_examples, max(1, int(most))),
            payload=_smaller(upload.payload, own_norms, own_counts),
        )
        for upload, most, own_norms, own_counts in zip(
            uploads, examples, norms, counts, strict=True
        )
    ]


def _bounded(values: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Each client's numbers: none of them, nor their sum, above `clip` times what is usual."""
    numbers = [own.double() for own in values]
    said = [own for own in numbers if len(own)]
    if not said:
        return numbers
    one = clip * median(torch.stack([own.mean() for own in said]))
    together = clip * median(torch.stack([own.sum() for own in said]))
    smaller = [own.clamp(max=one) for own in numbers]
    return [own * (together / own.sum().clamp(min=TINY)).clamp(max=1) for own in smaller]


def _norms(payload: Payload) -> Tensor:
    return payload["means"].double().norm(dim=1) if "means" in payload else NONE


def _smaller(payload: Payload, norms: Tensor, counts: Tensor) -> Payload:
    out = dict(payload)
    if "second" in payload:  # moments count as a whole
        if not len(counts):
            return out
        factor = float((counts / payload["counts"].double()).min().clamp(max=1))
        whole = Moments.read(payload, int(payload["classes"].max()) + 1)
        return out | whole.shrunk(factor).payload() if factor < 1 else out
    if "means" in payload:
        factors = norms / _norms(payload).clamp(min=TINY)
        out["means"] = payload["means"] * factors.float()[:, None]
    if "counts" in payload:
        out["counts"] = counts.clamp(min=1).to(payload["counts"].dtype)
    return out
