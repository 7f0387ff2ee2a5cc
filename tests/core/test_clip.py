"""Bounds of `defence.clip` on malicious clients, checked over many false claims.

Seven of ten clients are honest. For every upload of the other three, each weight is at most `clip`
times that of some honest client.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import sqrt
from statistics import median

import pytest
import torch
from torch import Tensor

from fedgh.core import class_table
from fedgh.core.average import mean_by_examples
from fedgh.core.defence import Defence, OutlierLog
from fedgh.core.types import Payload, Upload
from fedgh.methods.fedgh import FedGH
from fedgh.methods.fedproto import FedProto
from tests.support.rounds import uploads_of

CLIP = 2.0
CLASSES, WIDTH = 10, 6
HONEST = range(3, 10)
MALICIOUS = range(3)
ROUNDING = 1 + 1e-6


def upload(client: int, named: int, norm: float, count: int, examples: int) -> Upload:
    rng = torch.Generator().manual_seed(client)
    means = torch.randn(named, WIDTH, generator=rng)
    return Upload(
        client,
        examples,
        {
            "classes": torch.randperm(CLASSES, generator=rng)[:named].int(),
            "means": means * (norm / means.norm(dim=1, keepdim=True)),
            "counts": torch.full((named,), count, dtype=torch.int32),
        },
    )


def rounds() -> Iterator[list[Upload]]:
    """Yield rounds of honest clients of different sizes and malicious clients with equal claims."""
    honest = [upload(k, 1 + k % 4, 3.0 + k / 10, 10 * k, 100 * k) for k in HONEST]
    claims = product((0, 1, 3, CLASSES), (0.0, 1e-6, 4.0, 999.0), (1, 40, 2**31 - 1), (1, 2**53))
    for named, norm, count, examples in claims:
        yield [*(upload(k, named, norm, count, examples) for k in MALICIOUS), *honest]


def clipped(uploads: list[Upload]) -> list[Upload]:
    return list(Defence(clip=CLIP).apply(uploads, OutlierLog()))


def sizes(upload: Upload) -> list[Tensor]:
    """Return the norms, counts and number of samples that weight an upload."""
    payload = upload.payload
    weight = torch.tensor([upload.num_examples])
    return [payload["means"].double().norm(dim=1), payload["counts"].double(), weight.double()]


def test_every_weight_is_at_most_clip_times_the_median() -> None:
    for uploads in rounds():
        for kind in range(3):
            before = [sizes(upload)[kind] for upload in uploads]
            not_empty = [own for own in before if len(own)]
            typical = median(float(own.mean()) for own in not_empty)
            typical_sum = median(float(own.sum()) for own in not_empty)
            for own in (sizes(upload)[kind] for upload in clipped(uploads)):
                assert (own <= CLIP * typical * ROUNDING).all()
                assert own.sum() <= CLIP * typical_sum * ROUNDING


def test_malicious_weights_are_at_most_clip_times_the_largest_honest_ones() -> None:
    for uploads in rounds():
        honest = [sizes(uploads[k]) for k in HONEST]
        for malicious in clipped(uploads)[: len(MALICIOUS)]:
            for kind, own in enumerate(sizes(malicious)):
                max_sum = max(weights[kind].sum() for weights in honest)
                assert own.sum() <= CLIP * max_sum * ROUNDING
                max_mean = max(weights[kind].mean() for weights in honest)
                assert (own <= CLIP * max_mean * ROUNDING).all()


@pytest.mark.parametrize("epochs", [1, 3])
def test_one_client_moves_the_header_by_at_most_the_documented_bound(epochs: int) -> None:
    """Bound in docs/poisoning.md: server_lr · √2 · (sum of norms + number of classes) per pass."""
    method = FedGH(server_lr=0.5, server_epochs=epochs)
    start = {"weight": torch.zeros(CLASSES, WIDTH), "bias": torch.zeros(CLASSES)}
    max_share = 0.0
    for uploads in rounds():
        typical_sum = median(float(sizes(u)[0].sum()) for u in uploads if len(sizes(u)[0]))
        malicious = clipped(uploads)[0]
        after = method.server_update(start, uploads_of([malicious]))
        moved = sqrt(sum(float((after[n] - start[n]).square().sum()) for n in start))
        bound = epochs * 0.5 * sqrt(2) * (CLIP * typical_sum + len(malicious.payload["classes"]))
        assert moved <= bound
        max_share = max(max_share, moved / bound)
    assert max_share > 0.1, "the bound is tight to a factor of ten"


def test_false_numbers_of_samples_dominate_means_only_without_clipping() -> None:
    """Nine clients send 0 with 100 samples; one sends 1 with the maximum number of samples."""

    def payload(value: float, examples: int) -> Payload:
        return {
            "classes": torch.tensor([0], dtype=torch.int32),
            "means": torch.tensor([[0.1, value]]),
            "counts": torch.tensor([min(examples, 2**31 - 1)], dtype=torch.int32),
        }

    uploads = [
        Upload(0, 2**53, payload(1.0, 2**53)),
        *(Upload(k, 100, payload(0.0, 100)) for k in range(1, 10)),
    ]
    server = class_table.empty(num_classes=1, width=2)
    networks = [replace(u, payload={"weight": u.payload["means"][0, 1:]}) for u in uploads]
    for defence, share, norm in (
        (Defence(), 1.0, 1.0),
        (Defence(clip=2.0), 200 / 1100, 0.2 / sqrt(1.01)),
    ):
        averaged = mean_by_examples(defence.apply(networks, OutlierLog()), {})
        assert float(averaged["weight"]) == pytest.approx(share, rel=1e-5)
        after = FedProto().server_update(server, uploads_of(defence.apply(uploads, OutlierLog())))
        assert float(after["means"][0, 1]) == pytest.approx(share * norm, rel=1e-5)
