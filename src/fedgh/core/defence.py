"""Defences that bound the influence of a few malicious clients on the server.

`core.wire` validates each upload alone; this module compares the uploads of a round.

Agreement: a class mean is compared with the means of the same class from other clients. The shared
header pulls all extractors towards one geometry, so honest means of a class point in the same
direction, and a mean with the wrong label points elsewhere.

Clipping: the weight of a client is limited to a few times the typical weight.

"Typical" is the median over clients, to which each client contributes one number. A client that
sends many classes has no more votes than a client that sends one.
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

MIN_OTHER_VOTES = 2
"""Minimum votes of other clients for a class mean: of two means, either may be the outlier."""

PER_CLASS_TENSORS = ("classes", "means", "counts")
"""Names of upload tensors with one row per class."""

FULL_VOTE = 2.0**20  # vote of a client for a class; large, since shares of it are rounded down
MIN_DIVISOR = 1e-300  # avoids division by zero
NO_NUMBERS = torch.zeros(0, dtype=torch.float64)


@dataclass(frozen=True)
class Defence:
    """Defence settings; 0 turns either off. With either, the server waits for the last upload."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    agreement: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Minimum agreement of a class mean with the other means of its class; less is dropped.

    Agreement is the cosine of the angle between a mean and the median of the other means, both
    relative to the centre of all clients; about 0 for a mean unrelated to the class. Nothing is
    dropped while the median client is below the minimum: in the first rounds, extractors differ
    too much."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """Maximum of each quantity below, as a multiple of its typical value.

    - the norm of a class mean, and the sum of a client's norms;
    - the number of samples claimed for a class, and the sum of a client's numbers;
    - the number of samples by which a client is weighted.

    The typical value is the median over the clients of the round that send a class: of their mean
    norms, of their sums of norms, and so on. If a sum is too large, all its terms shrink by one
    factor. A number of samples stays at least 1, even if the sum then exceeds its maximum."""

    @property
    def used(self) -> bool:
        """True if uploads are clipped or filtered."""
        return bool(self.agreement or self.clip)

    def apply(self, uploads: Iterable[Upload], dropped: "OutlierLog") -> Iterator[Upload]:
        """Yield the clipped and filtered uploads in order; add dropped class means to the log."""
        if not self.used:
            yield from uploads
            return
        checked = list(uploads)
        if self.clip:
            checked = _clip(checked, self.clip)
        if self.agreement:
            checked = _drop_outliers(checked, self.agreement, dropped)
        yield from checked


@dataclass
class OutlierLog:
    """Class means dropped in a round: the labels, by client id."""

    classes: dict[int, list[int]] = field(default_factory=dict)


def _drop_outliers(uploads: list[Upload], minimum: float, dropped: OutlierLog) -> list[Upload]:
    per_client = agreement([upload.payload for upload in uploads])
    comparable = [own[~own.isnan()] for own in per_client]
    medians = [median(own) for own in comparable if len(own)]
    if not medians or median(torch.stack(medians)) < minimum:
        return uploads
    filtered: list[Upload] = []
    for upload, own in zip(uploads, per_client, strict=True):
        kept = ~(own < minimum)
        if not kept.all():
            dropped.classes[upload.client_id] = upload.payload["classes"][~kept].tolist()
        rows = {n: t[kept] if n in PER_CLASS_TENSORS else t for n, t in upload.payload.items()}
        filtered.append(replace(upload, payload=rows))
    return filtered


def agreement(payloads: Sequence[Payload]) -> list[Tensor]:
    """Return the agreement of each class mean with the others of its class, per client.

    NaN if fewer than `MIN_OTHER_VOTES` other votes exist. The coordinate-wise median of the other
    means moves little as long as most votes are honest.
    """
    sizes = torch.tensor([len(payload["classes"]) for payload in payloads])
    if not sizes.any():
        return [NO_NUMBERS for _ in payloads]
    votes = _votes(sizes).repeat_interleave(sizes)
    classes = torch.cat([payload["classes"] for payload in payloads])
    rows = normalize(torch.cat([payload["means"] for payload in payloads]).double(), dim=1)
    groups = [(classes == label).nonzero().flatten() for label in classes.unique()]
    centre = torch.zeros_like(rows[0])
    for own in groups:
        centre += votes[own].sum() / votes.sum() * median(rows[own], votes[own])
    out = rows.new_full((len(rows),), nan)
    for own in groups:
        if len(own) > MIN_OTHER_VOTES:
            others = median_of_others(rows[own], votes[own])
            enough = votes[own].sum() - votes[own] >= MIN_OTHER_VOTES * FULL_VOTE
            cosine = cosine_similarity(rows[own] - centre, others - centre, dim=1)
            out[own] = cosine.where(enough, nan)
    return list(out.split(sizes.tolist()))


def _votes(sizes: Tensor) -> Tensor:
    """Return the vote of each client for each of its classes, from its number of classes.

    A vote is `FULL_VOTE`, or less if the client sends more classes than the median client: all its
    votes together then equal those of the median client. A client that sends all classes thus does
    not outvote the clients that have them.
    """
    typical = median(sizes[sizes > 0].double())
    return (FULL_VOTE * typical / sizes).clamp(max=FULL_VOTE).floor()


def _clip(uploads: list[Upload], clip: float) -> list[Upload]:
    """Return the uploads with norms, counts and numbers of samples bounded."""
    payloads = [upload.payload for upload in uploads]
    examples = _bound([torch.tensor([upload.num_examples]) for upload in uploads], clip)
    norms = _bound([_norms(payload) for payload in payloads], clip)
    counts = _bound([_counts(payload) for payload in payloads], clip)
    return [
        replace(
            upload,
            num_examples=min(upload.num_examples, max(1, int(max_examples))),
            payload=_shrink(upload.payload, own_norms, own_counts),
        )
        for upload, max_examples, own_norms, own_counts in zip(
            uploads, examples, norms, counts, strict=True
        )
    ]


def _bound(values: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Return each client's numbers, with each and their sum at most `clip` times the median."""
    numbers = [own.double() for own in values]
    not_empty = [own for own in numbers if len(own)]
    if not not_empty:
        return numbers
    max_value = clip * median(torch.stack([own.mean() for own in not_empty]))
    max_sum = clip * median(torch.stack([own.sum() for own in not_empty]))
    clamped = [own.clamp(max=max_value) for own in numbers]
    return [own * (max_sum / own.sum().clamp(min=MIN_DIVISOR)).clamp(max=1) for own in clamped]


def _norms(payload: Payload) -> Tensor:
    return payload["means"].double().norm(dim=1) if "means" in payload else NO_NUMBERS


def _counts(payload: Payload) -> Tensor:
    """Return the numbers of samples of the classes that a client has."""
    return payload["counts"][_counted(payload)] if "counts" in payload else NO_NUMBERS


def _counted(payload: Payload) -> Tensor:
    """Return which counts are of classes that the client has: all, if the upload names classes."""
    counts = payload["counts"]
    return torch.ones_like(counts, dtype=torch.bool) if "classes" in payload else counts > 0


def _shrink(payload: Payload, norms: Tensor, counts: Tensor) -> Payload:
    out = dict(payload)
    if "second" in payload:  # moments shrink as a whole, or counts and sums would not fit together
        if not len(counts):
            return out
        factor = float((counts / payload["counts"].double()).min().clamp(max=1))
        whole = Moments.read(payload, int(payload["classes"].max()) + 1)
        return out | whole.shrunk(factor).payload() if factor < 1 else out
    if "means" in payload:
        factors = norms / _norms(payload).clamp(min=MIN_DIVISOR)
        out["means"] = payload["means"] * factors.float()[:, None]
    if "counts" in payload:
        least = counts.clamp(min=1).to(payload["counts"].dtype)
        out["counts"] = payload["counts"].masked_scatter(_counted(payload), least)
    return out
