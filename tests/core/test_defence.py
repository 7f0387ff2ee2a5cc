from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from fedgh import config
from fedgh.core.attack import Attack
from fedgh.core.defence import Defence, OutlierLog, agreement
from fedgh.core.moments import Moments
from fedgh.core.types import Payload, Upload
from fedgh.errors import ConfigError
from fedgh.training.experiment import prepare
from tests.support.tiny import a_client


def class_means_of(*pairs: tuple[int, list[float]]) -> Payload:
    return {
        "classes": torch.tensor([label for label, _ in pairs], dtype=torch.int32),
        "means": torch.tensor([mean for _, mean in pairs]),
    }


def uploads(*payloads: Payload) -> list[Upload]:
    return [Upload(client, 1, payload) for client, payload in enumerate(payloads)]


def defend(defence: Defence, sent: list[Upload]) -> tuple[list[Upload], dict[int, list[int]]]:
    dropped = OutlierLog()
    return list(defence.apply(iter(sent), dropped)), dropped.classes


def similar_uploads(
    owners: int, classes: int = 4, width: int = 30, spread: float = 0.5
) -> list[Upload]:
    """Return uploads of clients with all classes, whose means have similar directions."""
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


def test_without_a_defence_uploads_are_streamed() -> None:
    consumed = []

    def stream() -> Iterator[Upload]:
        for upload in similar_uploads(3):
            consumed.append(upload.client_id)
            yield upload

    first = next(iter(Defence().apply(stream(), OutlierLog())))
    assert (first.client_id, consumed) == (0, [0])


def test_uploads_without_classes_pass_both_defences() -> None:
    empty = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 3)}
    kept, dropped = defend(Defence(agreement=0.2, clip=2.0), uploads(empty, empty))
    assert [len(upload.payload["means"]) for upload in kept] == [0, 0]
    assert dropped == {}


def test_clipping_leaves_each_client_at_least_one_sample() -> None:
    kept, _ = defend(Defence(clip=0.1), uploads({}, {}))
    assert [upload.num_examples for upload in kept] == [1, 1]


def test_agreement_equals_brute_force() -> None:
    """Most clients send four classes; the client with eight has half a vote for each: 1, not 2."""
    sent = [*similar_uploads(6), replace(similar_uploads(1, classes=8)[0], client_id=6)]
    found = torch.cat(agreement([upload.payload for upload in sent]))
    classes = torch.cat([upload.payload["classes"] for upload in sent]).tolist()
    means = torch.cat([upload.payload["means"] for upload in sent]).double()
    votes = [2] * 6 * 4 + [1] * 8
    unit = means / means.norm(dim=1, keepdim=True)

    def centre_of(rows: list[int]) -> torch.Tensor:
        return torch.quantile(unit[[i for i in rows for _ in range(votes[i])]], 0.5, dim=0)

    of_class = [[i for i, c in enumerate(classes) if c == label] for label in range(8)]
    overall = sum(votes[i] * centre_of(rows) for rows in of_class for i in rows) / sum(votes)
    for i, label in enumerate(classes):
        others = [j for j in of_class[label] if j != i]
        if label >= 4:
            assert found[i].isnan()
        else:
            a, b = unit[i] - overall, centre_of(others) - overall
            assert_close(found[i], (a @ b) / (a.norm() * b.norm()))


def test_means_with_wrong_labels_are_dropped_and_honest_ones_kept() -> None:
    sent = similar_uploads(5)
    poisoned = sent[2].payload | {"classes": (sent[2].payload["classes"] + 1) % 4}
    sent[2] = replace(sent[2], payload=poisoned)
    kept, dropped = defend(Defence(agreement=0.2), sent)
    assert dropped == {2: [1, 2, 3, 0]}
    assert [upload.client_id for upload in kept] == [0, 1, 2, 3, 4]
    assert len(kept[2].payload["classes"]) == 0
    for upload, before in zip(kept, sent, strict=True):
        if upload.client_id != 2:
            assert upload.payload["means"].equal(before.payload["means"])


def test_random_means_are_dropped() -> None:
    sent = similar_uploads(5)
    noise = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    sent[0] = replace(sent[0], payload=sent[0].payload | {"means": noise})
    assert set(defend(Defence(agreement=0.2), sent)[1]) == {0}


def test_with_two_clients_per_class_nothing_is_dropped() -> None:
    sent = uploads(
        class_means_of((0, [1.0, 0.0])),
        class_means_of((0, [0.0, 1.0])),
        class_means_of((1, [1.0, 1.0])),
    )
    assert defend(Defence(agreement=0.9), sent)[1] == {}


def test_norms_counts_and_samples_are_clipped_to_a_multiple_of_the_median() -> None:
    sent = uploads(
        class_means_of((0, [3.0, 4.0]), (1, [0.0, 5.0])),
        class_means_of((0, [300.0, 400.0])),
        class_means_of((1, [0.0, 1.0])),
    )
    sent = [
        replace(
            u,
            num_examples=n,
            payload=u.payload | {"counts": torch.full_like(u.payload["classes"], n)},
        )
        for u, n in zip(sent, (10, 10**9, 30), strict=True)
    ]
    kept, dropped = defend(Defence(clip=2), sent)
    # mean norms 5, 500, 1 and their sums 10, 500, 1; counts 10, 1e9, 30 and their sums 20, 1e9, 30
    assert_close(kept[1].payload["means"], torch.tensor([[6.0, 8.0]]))
    assert kept[1].payload["counts"].tolist() == [60]
    assert [upload.num_examples for upload in kept] == [10, 60, 30]
    assert not dropped
    for untouched in (0, 2):
        for name, tensor in kept[untouched].payload.items():
            assert tensor.equal(sent[untouched].payload[name])
    assert sent[1].payload["means"].max() == 400, "the input is unchanged"


def test_a_client_with_many_classes_is_clipped_by_its_sums() -> None:
    one_class = class_means_of((0, [0.0, 5.0])) | {"counts": torch.tensor([10], dtype=torch.int32)}
    all_classes = {
        "classes": torch.arange(4, dtype=torch.int32),
        "means": torch.tensor([[3.0, 4.0]] * 3 + [[300.0, 400.0]]),
        "counts": torch.tensor([10, 10, 10, 2**31 - 1], dtype=torch.int32),
    }
    kept = defend(Defence(clip=2), uploads(one_class, all_classes, one_class))[0][1].payload
    # maximum 10 for a norm and for their sum: 5, 5, 5, 500 -> 5, 5, 5, 10 -> 2, 2, 2, 4
    assert_close(kept["means"].norm(dim=1), torch.tensor([2.0, 2.0, 2.0, 4.0]))
    # maximum 20 for a count and for their sum: 10, 10, 10, 20 -> 4, 4, 4, 8
    assert kept["counts"].tolist() == [4, 4, 4, 8]


def test_the_largest_possible_counts_are_clipped_without_overflow() -> None:
    largest = torch.tensor([2**31 - 1], dtype=torch.int32)
    sent = uploads(*(class_means_of((0, [1.0, 0.0])) | {"counts": largest} for _ in range(3)))
    for clip in (0.5, 2, 1e308):
        kept, _ = defend(Defence(clip=clip), [replace(u, num_examples=2**53) for u in sent])
        factor = min(1, clip)
        assert [u.payload["counts"].tolist() for u in kept] == [[int(factor * (2**31 - 1))]] * 3
        assert [u.num_examples for u in kept] == [int(factor * 2**53)] * 3


@pytest.mark.parametrize("owned", [2, 5])
@pytest.mark.parametrize("alike", [False, True], ids=["different-means", "same-means"])
def test_malicious_clients_with_all_classes_do_not_outvote_honest_ones(
    owned: int, alike: bool
) -> None:
    """5 of 20 clients are malicious: 50 false means; with two classes each, only 30 honest ones."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 500, generator=rng)
    false_means = torch.randn(10, 500, generator=rng)
    malicious: list[Payload] = [
        {
            "classes": torch.arange(10, dtype=torch.int32),
            "means": false_means if alike else torch.randn(10, 500, generator=rng),
        }
        for _ in range(5)
    ]
    honest: list[Payload] = []
    for client in range(15):
        classes = (torch.arange(owned) + client * owned) % 10
        spread = 0.2 * torch.randn(owned, 500, generator=rng)
        honest.append({"classes": classes.int(), "means": centres[classes] + spread})
    _, dropped = defend(Defence(agreement=0.2), uploads(*malicious, *honest))
    assert sum(len(dropped[client]) for client in range(5)) > 0.9 * 50
    assert max(dropped) < 5, "an honest mean was dropped"


def test_nothing_is_dropped_while_most_clients_disagree() -> None:
    sent = uploads(
        class_means_of((0, [1.0, 0.0])),
        class_means_of((0, [0.0, 1.0])),
        class_means_of((0, [-1.0, -1.0])),
    )
    assert defend(Defence(agreement=0.9), sent) == (sent, {})


def test_high_agreement_drops_nothing_without_classes() -> None:
    empty = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 2)}
    assert defend(Defence(agreement=0.9, clip=2), uploads(empty, empty))[1] == {}


def test_a_round_without_uploads_stays_empty() -> None:
    assert defend(Defence(agreement=0.5, clip=2), []) == ([], {})


def test_flip_scale_and_noise_poison_only_malicious_clients() -> None:
    honest = class_means_of((0, [3.0, 4.0]), (2, [1.0, 0.0]))
    client = a_client(torch.zeros(4, 2), torch.tensor([0, 0, 1, 2]))
    client.id = 1
    assert Attack(clients=1).poison(client, honest) is honest
    flipped = Attack(clients=2).poison(client, honest)
    assert flipped["classes"].tolist() == [1, 3 % client.task.num_classes]
    assert flipped["means"].equal(honest["means"])
    scaled = Attack(clients=2, kind="scale", strength=3).poison(client, honest)
    assert_close(scaled["means"], 3 * honest["means"])
    noise = Attack(clients=2, kind="noise", strength=2).poison(client, honest)["means"]
    assert_close(noise.norm(dim=1), torch.tensor([10.0, 2.0]))
    assert honest["classes"].tolist() == [0, 2]


def test_attack_everything_sends_noise_for_all_classes() -> None:
    honest = class_means_of((0, [3.0, 4.0]), (2, [1.0, 0.0]))
    honest["counts"] = torch.tensor([7, 9], dtype=torch.int32)
    client = a_client(torch.zeros(4, 2), torch.tensor([0, 0, 1, 2]))
    attack = Attack(clients=1, kind="everything", strength=2)
    poisoned = attack.poison(client, honest)
    assert poisoned["classes"].tolist() == list(range(client.task.num_classes))
    assert poisoned["classes"].dtype is torch.int32
    assert_close(poisoned["means"].norm(dim=1), torch.tensor([10.0, 2.0, 10.0]))
    assert poisoned["counts"].tolist() == [7, 9, 7]
    directions = normalize(poisoned["means"], dim=1)
    assert not directions[0].allclose(directions[2], atol=1e-3)
    assert [
        attack.count_named_classes(client_id, held=2, num_classes=3) for client_id in (0, 1)
    ] == [3, 2]
    assert Attack(clients=1, kind="noise").count_named_classes(0, held=2, num_classes=3) == 2


@pytest.mark.parametrize("setting", [{"defence": {"agreement": 0.2}}, {"attack": {"clients": 1}}])
def test_defence_and_attack_need_a_method_with_class_means(
    setting: dict[str, dict[str, float]],
) -> None:
    with pytest.raises(ConfigError, match="which lg_fedavg does not send"):
        prepare(config.parse({"method": {"name": "lg_fedavg"}, **setting}))


def test_clipping_shrinks_moments_as_a_whole() -> None:
    """Smaller counts alone would not fit the sums."""
    rng = torch.Generator().manual_seed(0)

    def upload(client: int, samples: int) -> Upload:
        x = torch.randn(samples, 4, generator=rng).double()
        return Upload(client, 0, Moments.of(x, torch.arange(samples) % 2, 3).payload())

    sent = [upload(0, 20), upload(1, 20), upload(2, 4000)]
    clipped = list(Defence(clip=2.0).apply(sent, OutlierLog()))
    assert clipped[:2] == sent[:2]
    large, bounded = (Moments.read(u.payload, 3) for u in (sent[2], clipped[2]))
    assert bounded.counts.tolist() == [20, 20, 0]
    bounded.check()
    torch.testing.assert_close(bounded.means, large.means, atol=1e-3, rtol=0)
    torch.testing.assert_close(bounded.scatter / 40, large.scatter / 4000, atol=1e-3, rtol=0)


def test_clipped_label_counts_stay_zero_for_classes_that_a_client_lacks() -> None:
    """FedGen's uploads have a count for every class; zeros are no typical numbers of samples."""
    told = [[10, 10, 0, 0], [10, 10, 0, 0], [0, 0, 10, 1000]]
    sent = uploads(*({"counts": torch.tensor(own, dtype=torch.int32)} for own in told))
    kept, _ = defend(Defence(clip=2.0), sent)
    counts = [upload.payload["counts"].tolist() for upload in kept]
    assert counts == [*told[:2], [0, 0, 10, 20]]
