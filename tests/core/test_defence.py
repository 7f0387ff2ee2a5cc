from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from fedgh import config
from fedgh.core.attack import Attack
from fedgh.core.defence import Defence, Dropped, agreement
from fedgh.core.types import Payload, Upload
from fedgh.errors import ConfigError
from fedgh.experiment import prepare
from tests.tiny import a_client


def pairs(*of: tuple[int, list[float]]) -> Payload:
    return {
        "classes": torch.tensor([label for label, _ in of], dtype=torch.int32),
        "means": torch.tensor([mean for _, mean in of]),
    }


def uploads(*payloads: Payload) -> list[Upload]:
    return [Upload(client, 1, payload) for client, payload in enumerate(payloads)]


def seen(defence: Defence, sent: list[Upload]) -> tuple[list[Upload], dict[int, list[int]]]:
    dropped = Dropped()
    return list(defence.apply(iter(sent), dropped)), dropped.classes


def many(owners: int, classes: int = 4, width: int = 30, spread: float = 0.5) -> list[Upload]:
    """Clients that hold all classes, whose means point about the same way."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=rng).relu()
    return uploads(
        *(
            {
                "classes": torch.arange(classes, dtype=torch.int32),
                "means": (centres + spread * torch.randn(classes, width, generator=rng)).relu(),
            }
            for _ in range(owners)
        )
    )


def test_without_a_defence_everything_streams_through() -> None:
    consumed = []

    def stream() -> Iterator[Upload]:
        for upload in many(3):
            consumed.append(upload.client_id)
            yield upload

    first = next(iter(Defence().apply(stream(), Dropped())))
    assert (first.client_id, consumed) == (0, [0])


def test_clients_without_classes_have_nothing_to_agree_on() -> None:
    nothing = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 3)}
    kept, dropped = seen(Defence(agreement=0.2, clip=2.0), uploads(nothing, nothing))
    assert [len(upload.payload["means"]) for upload in kept] == [0, 0]
    assert dropped == {}


def test_whoever_counts_counts_at_least_once() -> None:
    kept, _ = seen(Defence(clip=0.1), uploads({}, {}))
    assert [upload.num_examples for upload in kept] == [1, 1]


def test_agreement_is_that_of_brute_force() -> None:
    sent = many(6)
    classes = torch.cat([upload.payload["classes"] for upload in sent])
    means = torch.cat([upload.payload["means"] for upload in sent])
    found = agreement(classes, means)
    unit = means.double() / means.double().norm(dim=1, keepdim=True)
    middle = torch.stack([unit[classes == c].quantile(0.5, dim=0) for c in range(4)]).mean(0)
    for i in range(len(classes)):
        others = [j for j in range(len(classes)) if classes[j] == classes[i] and j != i]
        a, b = unit[i] - middle, unit[others].quantile(0.5, dim=0) - middle
        assert_close(found[i], (a @ b) / (a.norm() * b.norm()))


def test_a_wrong_label_is_found_and_the_honest_stay() -> None:
    sent = many(5)
    lie = sent[2].payload | {"classes": (sent[2].payload["classes"] + 1) % 4}
    sent[2] = replace(sent[2], payload=lie)
    kept, dropped = seen(Defence(agreement=0.2), sent)
    assert dropped == {2: [1, 2, 3, 0]}
    assert [upload.client_id for upload in kept] == [0, 1, 2, 3, 4]
    assert len(kept[2].payload["classes"]) == 0
    for upload, before in zip(kept, sent, strict=True):
        if upload.client_id != 2:
            assert upload.payload["means"].equal(before.payload["means"])


def test_noise_is_found() -> None:
    sent = many(5)
    noise = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    sent[0] = replace(sent[0], payload=sent[0].payload | {"means": noise})
    assert set(seen(Defence(agreement=0.2), sent)[1]) == {0}


def test_of_two_owners_nobody_is_the_odd_one() -> None:
    sent = uploads(pairs((0, [1.0, 0.0])), pairs((0, [0.0, 1.0])), pairs((1, [1.0, 1.0])))
    assert seen(Defence(agreement=0.9), sent)[1] == {}


def test_nobody_counts_more_than_a_few_times_the_median() -> None:
    sent = uploads(
        pairs((0, [3.0, 4.0]), (1, [0.0, 5.0])), pairs((0, [300.0, 400.0])), pairs((1, [0.0, 1.0]))
    )
    sent = [
        replace(
            u,
            num_examples=n,
            payload=u.payload | {"counts": torch.full_like(u.payload["classes"], n)},
        )
        for u, n in zip(sent, (10, 10**9, 30), strict=True)
    ]
    kept, dropped = seen(Defence(clip=2), sent)
    # norms 5, 5, 500, 1: median 5; counts 10, 10, 1e9, 30: median 20; examples 10, 1e9, 30
    assert_close(kept[1].payload["means"], torch.tensor([[6.0, 8.0]]))
    assert kept[1].payload["counts"].tolist() == [40]
    assert [upload.num_examples for upload in kept] == [10, 60, 30]
    assert not dropped
    for untouched in (0, 2):
        for name, tensor in kept[untouched].payload.items():
            assert tensor.equal(sent[untouched].payload[name])
    assert sent[1].payload["means"].max() == 400, "what came in is left alone"


def test_while_most_do_not_agree_nobody_is_left_out() -> None:
    sent = uploads(pairs((0, [1.0, 0.0])), pairs((0, [0.0, 1.0])), pairs((0, [-1.0, -1.0])))
    assert seen(Defence(agreement=0.9), sent) == (sent, {})


def test_uploads_without_a_single_class() -> None:
    nothing = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 2)}
    assert seen(Defence(agreement=0.9, clip=2), uploads(nothing, nothing))[1] == {}


def test_an_empty_round() -> None:
    assert seen(Defence(agreement=0.5, clip=2), []) == ([], {})


def test_attacks_change_what_they_say_and_only_for_the_attackers() -> None:
    honest = pairs((0, [3.0, 4.0]), (2, [1.0, 0.0]))
    client = a_client(torch.zeros(4, 2), torch.tensor([0, 0, 1, 2]))
    client.id = 1
    assert Attack(clients=1).poisoned(client, honest) is honest
    flipped = Attack(clients=2).poisoned(client, honest)
    assert flipped["classes"].tolist() == [1, 3 % client.task.num_classes]
    assert flipped["means"].equal(honest["means"])
    scaled = Attack(clients=2, kind="scale", strength=3).poisoned(client, honest)
    assert_close(scaled["means"], 3 * honest["means"])
    noise = Attack(clients=2, kind="noise", strength=2).poisoned(client, honest)["means"]
    assert_close(noise.norm(dim=1), torch.tensor([10.0, 2.0]))
    assert honest["classes"].tolist() == [0, 2]


@pytest.mark.parametrize("setting", [{"defence": {"agreement": 0.2}}, {"attack": {"clients": 1}}])
def test_what_is_about_class_means_needs_them(setting: dict[str, dict[str, float]]) -> None:
    with pytest.raises(ConfigError, match="which lg_fedavg does not send"):
        prepare(config.parse({"method": {"name": "lg_fedavg"}, **setting}))
