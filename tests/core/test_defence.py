from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from fedgh import config
from fedgh.core.attack import Attack
from fedgh.core.defence import Defence, Dropped, agreement
from fedgh.core.moments import Moments
from fedgh.core.types import Payload, Upload
from fedgh.errors import ConfigError
from fedgh.training.experiment import prepare
from tests.support.tiny import a_client


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
    """Most name four classes; who names eight has half a vote for each, and counts once where
    the others count twice."""
    sent = [*many(6), replace(many(1, classes=8)[0], client_id=6)]
    found = torch.cat(agreement([upload.payload for upload in sent]))
    classes = torch.cat([upload.payload["classes"] for upload in sent]).tolist()
    means = torch.cat([upload.payload["means"] for upload in sent]).double()
    votes = [2] * 6 * 4 + [1] * 8
    unit = means / means.norm(dim=1, keepdim=True)

    def middle_of(rows: list[int]) -> torch.Tensor:
        return torch.quantile(unit[[i for i in rows for _ in range(votes[i])]], 0.5, dim=0)

    of_class = [[i for i, c in enumerate(classes) if c == label] for label in range(8)]
    together = sum(votes[i] * middle_of(rows) for rows in of_class for i in rows) / sum(votes)
    for i, label in enumerate(classes):
        others = [j for j in of_class[label] if j != i]
        if label >= 4:
            assert found[i].isnan()
        else:
            a, b = unit[i] - together, middle_of(others) - together
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
    # mean norms 5, 500, 1 and their sums 10, 500, 1; counts 10, 1e9, 30 and their sums 20, 1e9, 30
    assert_close(kept[1].payload["means"], torch.tensor([[6.0, 8.0]]))
    assert kept[1].payload["counts"].tolist() == [60]
    assert [upload.num_examples for upload in kept] == [10, 60, 30]
    assert not dropped
    for untouched in (0, 2):
        for name, tensor in kept[untouched].payload.items():
            assert tensor.equal(sent[untouched].payload[name])
    assert sent[1].payload["means"].max() == 400, "what came in is left alone"


def test_who_names_many_classes_shares_out_what_one_may_count() -> None:
    one = pairs((0, [0.0, 5.0])) | {"counts": torch.tensor([10], dtype=torch.int32)}
    all_of_them = {
        "classes": torch.arange(4, dtype=torch.int32),
        "means": torch.tensor([[3.0, 4.0]] * 3 + [[300.0, 400.0]]),
        "counts": torch.tensor([10, 10, 10, 2**31 - 1], dtype=torch.int32),
    }
    kept = seen(Defence(clip=2), uploads(one, all_of_them, one))[0][1].payload
    # at most 10 for a norm and for their sum: 5, 5, 5, 500 -> 5, 5, 5, 10 -> 2, 2, 2, 4
    assert_close(kept["means"].norm(dim=1), torch.tensor([2.0, 2.0, 2.0, 4.0]))
    # at most 20 for a count and for their sum: 10, 10, 10, 20 -> 4, 4, 4, 8
    assert kept["counts"].tolist() == [4, 4, 4, 8]


def test_counts_as_large_as_they_may_be() -> None:
    largest = torch.tensor([2**31 - 1], dtype=torch.int32)
    sent = uploads(*(pairs((0, [1.0, 0.0])) | {"counts": largest} for _ in range(3)))
    for clip in (0.5, 2, 1e308):
        kept, _ = seen(Defence(clip=clip), [replace(u, num_examples=2**53) for u in sent])
        most = min(1, clip)
        assert [u.payload["counts"].tolist() for u in kept] == [[int(most * (2**31 - 1))]] * 3
        assert [u.num_examples for u in kept] == [int(most * 2**53)] * 3


@pytest.mark.parametrize("owned", [2, 5])
@pytest.mark.parametrize("alike", [False, True], ids=["noise", "one lie"])
def test_naming_all_classes_does_not_outvote_their_owners(owned: int, alike: bool) -> None:
    """Five of twenty: 50 lies, and of truths, with two classes each, only 30."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 500, generator=rng)
    lie = torch.randn(10, 500, generator=rng)
    liars: list[Payload] = [
        {
            "classes": torch.arange(10, dtype=torch.int32),
            "means": lie if alike else torch.randn(10, 500, generator=rng),
        }
        for _ in range(5)
    ]
    honest: list[Payload] = []
    for client in range(15):
        classes = (torch.arange(owned) + client * owned) % 10
        spread = 0.2 * torch.randn(owned, 500, generator=rng)
        honest.append({"classes": classes.int(), "means": centres[classes] + spread})
    _, dropped = seen(Defence(agreement=0.2), uploads(*liars, *honest))
    assert sum(len(dropped[client]) for client in range(5)) > 0.9 * 50
    assert max(dropped) < 5, "an honest one was left out"


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


def test_an_attacker_may_speak_of_everything() -> None:
    honest = pairs((0, [3.0, 4.0]), (2, [1.0, 0.0]))
    honest["counts"] = torch.tensor([7, 9], dtype=torch.int32)
    client = a_client(torch.zeros(4, 2), torch.tensor([0, 0, 1, 2]))
    attack = Attack(clients=1, kind="everything", strength=2)
    lies = attack.poisoned(client, honest)
    assert lies["classes"].tolist() == list(range(client.task.num_classes))
    assert lies["classes"].dtype is torch.int32
    assert_close(lies["means"].norm(dim=1), torch.tensor([10.0, 2.0, 10.0]))
    assert lies["counts"].tolist() == [7, 9, 7]
    directions = normalize(lies["means"], dim=1)
    assert not directions[0].allclose(directions[2], atol=1e-3)
    assert [attack.names(client_id, held=2, num_classes=3) for client_id in (0, 1)] == [3, 2]
    assert Attack(clients=1, kind="noise").names(0, held=2, num_classes=3) == 2


@pytest.mark.parametrize("setting", [{"defence": {"agreement": 0.2}}, {"attack": {"clients": 1}}])
def test_what_is_about_class_means_needs_them(setting: dict[str, dict[str, float]]) -> None:
    with pytest.raises(ConfigError, match="which lg_fedavg does not send"):
        prepare(config.parse({"method": {"name": "lg_fedavg"}, **setting}))


def test_moments_count_less_as_a_whole() -> None:
    """Counts alone would not fit the sums any more."""
    rng = torch.Generator().manual_seed(0)

    def upload(client: int, samples: int) -> Upload:
        x = torch.randn(samples, 4, generator=rng).double()
        return Upload(client, 0, Moments.of(x, torch.arange(samples) % 2, 3).payload())

    said = [upload(0, 20), upload(1, 20), upload(2, 4000)]
    found = list(Defence(clip=2.0).apply(said, Dropped()))
    assert found[:2] == said[:2]
    large, bounded = (Moments.read(one.payload, 3) for one in (said[2], found[2]))
    assert bounded.counts.tolist() == [20, 20, 0]
    bounded.check()
    torch.testing.assert_close(bounded.means, large.means, atol=1e-3, rtol=0)
    torch.testing.assert_close(bounded.scatter / 40, large.scatter / 4000, atol=1e-3, rtol=0)
