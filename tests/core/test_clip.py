"""How much liars count under `defence.clip`, whatever they claim: by brute force.

Seven of ten are honest. Whatever the other three send, none of it counts more than `clip` times
what it does for some honest client.
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
from fedgh.core.defence import Defence, Dropped
from fedgh.core.types import Payload, Upload
from fedgh.methods.fedgh import FedGH
from fedgh.methods.fedproto import FedProto
from tests.support.rounds import uploads_of

CLIP = 2.0
CLASSES, WIDTH = 10, 6
HONEST = range(3, 10)
LIARS = range(3)
ROUNDING = 1 + 1e-6


def sent(client: int, named: int, norm: float, count: int, examples: int) -> Upload:
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
    """Honest clients of different sizes, and liars that all exaggerate, or not, the same way."""
    honest = [sent(k, 1 + k % 4, 3.0 + k / 10, 10 * k, 100 * k) for k in HONEST]
    claims = product((0, 1, 3, CLASSES), (0.0, 1e-6, 4.0, 999.0), (1, 40, 2**31 - 1), (1, 2**53))
    for named, norm, count, examples in claims:
        yield [*(sent(k, named, norm, count, examples) for k in LIARS), *honest]


def clipped(uploads: list[Upload]) -> list[Upload]:
    return list(Defence(clip=CLIP).apply(uploads, Dropped()))


def sizes(upload: Upload) -> list[Tensor]:
    """All that says how much something counts."""
    payload = upload.payload
    weight = torch.tensor([upload.num_examples])
    return [payload["means"].double().norm(dim=1), payload["counts"].double(), weight.double()]


def test_nothing_that_a_client_says_counts_more_than_is_usual() -> None:
    for uploads in rounds():
        for kind in range(3):
            before = [sizes(upload)[kind] for upload in uploads]
            said = [own for own in before if len(own)]
            usual = median(float(own.mean()) for own in said)
            together = median(float(own.sum()) for own in said)
            for own in (sizes(upload)[kind] for upload in clipped(uploads)):
                assert (own <= CLIP * usual * ROUNDING).all()
                assert own.sum() <= CLIP * together * ROUNDING


def test_liars_do_not_move_what_is_usual_beyond_what_is_honest() -> None:
    for uploads in rounds():
        honest = [sizes(uploads[k]) for k in HONEST]
        for liar in clipped(uploads)[: len(LIARS)]:
            for kind, own in enumerate(sizes(liar)):
                assert own.sum() <= CLIP * max(each[kind].sum() for each in honest) * ROUNDING
                largest = max(each[kind].mean() for each in honest)
                assert (own <= CLIP * largest * ROUNDING).all()


@pytest.mark.parametrize("epochs", [1, 3])
def test_how_far_a_client_moves_the_header(epochs: int) -> None:
    """What docs/poisoning.md says: of each pass, server_lr · √2 · (its norms + its classes)."""
    method = FedGH(server_lr=0.5, server_epochs=epochs)
    start = {"weight": torch.zeros(CLASSES, WIDTH), "bias": torch.zeros(CLASSES)}
    farthest = 0.0
    for uploads in rounds():
        together = median(float(sizes(u)[0].sum()) for u in uploads if len(sizes(u)[0]))
        liar = clipped(uploads)[0]
        after = method.server_update(start, uploads_of([liar]))
        moved = sqrt(sum(float((after[n] - start[n]).square().sum()) for n in start))
        most = epochs * 0.5 * sqrt(2) * (CLIP * together + len(liar.payload["classes"]))
        assert moved <= most
        farthest = max(farthest, moved / most)
    assert farthest > 0.1, "the bound says something"


def test_claimed_samples_are_believed_unless_they_are_clipped() -> None:
    """Nine say 0 with a hundred samples, one says 1 with as many as can be claimed."""

    def said(value: float, examples: int) -> Payload:
        return {
            "classes": torch.tensor([0], dtype=torch.int32),
            "means": torch.tensor([[0.1, value]]),
            "counts": torch.tensor([min(examples, 2**31 - 1)], dtype=torch.int32),
        }

    uploads = [
        Upload(0, 2**53, said(1.0, 2**53)),
        *(Upload(k, 100, said(0.0, 100)) for k in range(1, 10)),
    ]
    server = class_table.empty(num_classes=1, width=2)
    networks = [replace(u, payload={"weight": u.payload["means"][0, 1:]}) for u in uploads]
    for defence, share, norm in (
        (Defence(), 1.0, 1.0),
        (Defence(clip=2.0), 200 / 1100, 0.2 / sqrt(1.01)),
    ):
        averaged = mean_by_examples(defence.apply(networks, Dropped()), {})
        assert float(averaged["weight"]) == pytest.approx(share, rel=1e-5)
        after = FedProto().server_update(server, uploads_of(defence.apply(uploads, Dropped())))
        assert float(after["means"][0, 1]) == pytest.approx(share * norm, rel=1e-5)
