"""The partition and splits of the FedGH authors' published code."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgh import ClientSpec, Federation, config
from fedgh.data.partition import by_classes
from fedgh.data.published import official_splits, published_partition, published_splits
from fedgh.data.sources import Source
from fedgh.errors import ConfigError
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.loop import run


def labels(classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.arange(classes).repeat(each))


def test_the_draw_is_that_of_the_older_generators_in_the_published_order() -> None:
    # Two classes, two clients with one class each, worked through call by call.
    y = np.array([0, 1] * 6)
    drawn = np.random.RandomState(42)
    for _ in range(2):  # one share for each class, which is then the whole class
        drawn.uniform(0.4, 0.6, size=1)
    first = int(drawn.choice([0, 1]))
    zeros, ones = (np.flatnonzero(y == label).tolist() for label in (0, 1))
    shuffle = random.Random(42)
    shuffle.shuffle(zeros)
    shuffle.shuffle(ones)
    expected = [zeros, ones] if first == 0 else [ones, zeros]
    parts = published_partition(y, 2, 2, 1, 42)
    assert [part.tolist() for part in parts] == expected


def as_published(
    y: np.ndarray, classes: int, clients: int, per_client: int, seed: int
) -> list[list[int]]:
    """Return the partition by the steps of pFedHN's functions, from which the authors' code is."""
    drawn, shuffle = np.random.RandomState(seed), random.Random(seed)
    count = clients * per_client // classes
    by_class: dict[int, dict[str, Any]] = {}
    for label in range(classes):
        probabilities = drawn.uniform(0.4, 0.6, size=count)
        by_class[label] = {"count": count, "prob": list(probabilities / probabilities.sum())}
    owners = []
    for _ in range(clients):
        own: list[int] = []
        for _ in range(per_client):
            counts = [by_class[label]["count"] for label in range(classes)]
            own.append(int(drawn.choice(np.where(np.array(counts) == max(counts))[0])))
            by_class[own[-1]]["count"] -= 1
        owners.append((own, [by_class[label]["prob"].pop() for label in own]))
    rows = {label: np.where(y == label)[0] for label in range(classes)}
    sizes = {label: len(members) for label, members in rows.items()}
    for members in rows.values():
        shuffle.shuffle(members)  # type: ignore[arg-type]
    parts = []
    for own, shares in owners:
        part: list[int] = []
        for label, probability in zip(own, shares, strict=True):
            end = int(sizes[label] * probability)
            part.extend(rows[label][:end].tolist())
            rows[label] = rows[label][end:]
        parts.append(part)
    return parts


@pytest.mark.parametrize(
    ("classes", "clients", "per_client"), [(10, 10, 2), (10, 50, 2), (100, 10, 10), (10, 10, 6)]
)
def test_the_partition_is_that_of_the_published_steps(
    classes: int, clients: int, per_client: int
) -> None:
    y = labels(classes, 60)
    parts = published_partition(y, classes, clients, per_client, 42)
    assert [part.tolist() for part in parts] == as_published(y, classes, clients, per_client, 42)


@pytest.mark.parametrize(
    ("classes", "clients", "per_client"), [(10, 10, 2), (10, 50, 2), (100, 10, 10), (10, 10, 4)]
)
def test_every_class_is_divided_among_its_owners(
    classes: int, clients: int, per_client: int
) -> None:
    y = labels(classes, 100)
    parts = published_partition(y, classes, clients, per_client, 42)
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    lost = len(y) - len(rows)
    assert 0 <= lost <= clients * per_client  # at most a sample for each share, rounded down
    assert all(len(np.unique(y[part])) <= per_client for part in parts)


def test_a_client_may_get_a_class_twice_but_not_in_the_settings_of_the_tables() -> None:
    def repeated(per_client: int) -> float:
        y = labels(10, 100)
        clients = [
            len(np.unique(y[part])) < per_client
            for seed in range(40)
            for part in published_partition(y, 10, 10, per_client, seed)
        ]
        return float(np.mean(clients))

    assert repeated(2) == 0
    # The shares that were computed for the published code: 8, 27 and 53% of the clients.
    assert repeated(4) == pytest.approx(0.08, abs=0.04)
    assert repeated(6) == pytest.approx(0.27, abs=0.06)
    assert repeated(8) == pytest.approx(0.53, abs=0.07)


def test_a_number_of_classes_that_is_no_multiple_is_refused() -> None:
    with pytest.raises(ConfigError, match="equally often"):
        published_partition(labels(10, 20), 10, 3, 2, 42)


def test_a_seed_that_the_older_generator_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"federation\.seed above 4294967295"):
        published_partition(labels(10, 20), 10, 10, 2, 2**32)
    assert len(published_partition(labels(10, 20), 10, 10, 2, 2**32 - 1)) == 10


def test_a_class_without_samples_gives_its_owners_none() -> None:
    y = labels(9, 20)
    parts = published_partition(y, 10, 5, 4, 42)
    rows = np.concatenate(parts)
    assert len(rows) == len(np.unique(rows)) >= len(y) - 18  # 18 shares, rounded down


def test_the_published_splits_hold_out_validation_and_test_on_the_official_images() -> None:
    y = labels(10, 6000)
    partition = published_splits(y, 10, 10, 2, 42, tests=10_000)
    of_split = [
        torch.cat([partition.indices(client)[split] for client in range(10)]) for split in range(3)
    ]
    train, validation, test = (set(rows.tolist()) for rows in of_split)
    assert [len(of_split[0]), len(of_split[1]), len(of_split[2])] == pytest.approx(
        [40_000, 10_000, 10_000], abs=20
    )
    assert not train & validation
    assert min(test) >= 50_000 > max(train | validation)
    mixed = torch.randperm(50_000, generator=torch.Generator().manual_seed(42)).tolist()
    assert train <= set(mixed[:40_000])
    assert validation <= set(mixed[40_000:])
    for client in range(10):  # the same classes in every split
        assert len({frozenset(y[rows].tolist()) for rows in partition.indices(client)}) == 1


def test_official_splits_keep_each_clients_samples() -> None:
    y = labels(10, 2000)
    parts = by_classes(y, 10, 10, 2, seed=1)
    partition = official_splits(parts, y, seed=1, tests=5000)
    for client, part in enumerate(parts):
        train, validation, test = (rows.tolist() for rows in partition.indices(client))
        assert sorted(train + validation + test) == sorted(part.tolist())
        assert min(test) >= 15_000 > max(train + validation)
        assert len(validation) / len(train + validation) == pytest.approx(2 / 3, abs=0.01)


def test_a_data_set_without_official_test_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="official test images"):
        official_splits([np.arange(20)], labels(2, 10), seed=0, tests=0)


@pytest.fixture
def images() -> Source:
    y = torch.from_numpy(labels(10, 1200))
    x = torch.randint(0, 256, (len(y), 1, 8, 8), dtype=torch.uint8)
    return Source("random images", x, y, tuple("0123456789"), tests=1000)


SMALL = (
    *("model.extractors=mlp,perceptron", "model.rep_dim=8", "local.epochs=1", "local.augment=[]"),
    *("federation.rounds=1", "run.engine=serial", "data.classes_per_client=2"),
)


@pytest.fixture
def experiment(images: Source) -> Callable[..., Experiment]:
    def make(*settings: str) -> Experiment:
        return prepare(config.load("demo", [*SMALL, *settings]), source=images)

    return make


def test_the_switches_change_the_fingerprint_and_their_absence_does_not(
    experiment: Callable[..., Experiment],
) -> None:
    usual = experiment()
    assert "published" not in usual.config.portable()
    switches = ("partition", "split", "first_weights", "batch_means")
    changed = {experiment(f"published.{name}=true").fingerprint() for name in switches}
    assert len(changed | {usual.fingerprint()}) == 1 + len(switches)


@pytest.mark.parametrize(
    "settings",
    [
        ("published.partition=true", "data.partition=iid"),
        ("published.split=true", "data.samples=50"),
        ("published.first_weights=true", "run.engine=workers"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(
    experiment: Callable[..., Experiment], settings: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="published"):
        experiment(*settings)


def test_clients_of_a_kind_go_on_from_one_another_in_the_first_round(
    experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    # Without a step (lr = 0) every client of a kind keeps the one initial network of its kind.
    prepared = experiment("published.first_weights=true", "local.lr=1e-30", "local.momentum=0.0")
    initial = [prepared.blueprint().make(client).model.state_dict() for client in range(4)]
    assert all(initial[0][name].equal(initial[2][name]) for name in initial[0])
    assert not all(initial[0][name].equal(initial[1][name]) for name in initial[0])
    # With steps, client 2 starts from what client 0 has learned.
    settings = ("published.first_weights=true", "method.name=standalone")
    chain = experiment(*settings)
    states = run(chain, tmp_path / "chain").client_files(1)
    first, third = states.load(0), states.load(2)
    assert first is not None
    assert third is not None
    alone = chain.blueprint()
    client = alone.make(2)
    client.model.load_state_dict(
        {name.removeprefix("model."): t for name, t in first.items() if name.startswith("model.")}
    )
    client.round = 1
    with torch.random.fork_rng():
        alone.method.client_update(client, {})
    trained = client.model.state_dict()
    assert all(third[f"model.{name}"].equal(tensor) for name, tensor in trained.items())


@pytest.mark.parametrize("method", ["standalone", "fedgh"])
def test_the_chain_of_the_first_round_is_the_same_if_clients_leave_memory(
    experiment: Callable[..., Experiment], tmp_path: Path, method: str
) -> None:
    settings = (f"method.name={method}", "published.first_weights=true", "data.samples=40")
    runs = [
        run(experiment(*settings, f"run.memory={gib}"), tmp_path / gib) for gib in ("4", "1e-9")
    ]
    large, small = (each.client_files(1) for each in runs)
    for client in range(10):
        kept, evicted = large.load(client), small.load(client)
        assert kept is not None
        assert evicted is not None
        assert all(evicted[name].equal(tensor) for name, tensor in kept.items())


def test_data_that_are_not_partitioned_here_are_refused() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    data = (torch.randn(20, 4), [0, 1] * 10)
    clients = [ClientSpec(network, data)] * 2
    for name in ("partition", "split", "first_weights"):
        federation = Federation(clients, settings={f"published.{name}": True})
        with pytest.raises(ConfigError, match="partitioned"):
            federation.experiment()
    assert Federation(clients, settings={"published.batch_means": True}).experiment()


def test_batch_means_are_the_mean_over_batches_of_512(
    experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    # Two clients with 600 test samples each: batches of 512 and 88.
    settings = ("federation.clients=2", "data.classes_per_client=5", "federation.rounds=1")
    prepared = experiment(*settings, "method.name=standalone", "published.batch_means=true")
    done = run(prepared, tmp_path)
    blueprint = prepared.blueprint()
    for number, recorded in enumerate(done.records()[0].accuracies):
        client = blueprint.make(number)
        client.load(done.client_files(1).load(number) or {})
        test = client.data.test
        x, y = test.x[test.index].float() / 127.5 - 1, test.y[test.index]
        right = (client.model.eval()(x).argmax(1) == y).double()
        assert len(right) > 512
        expected = float(right[:512].mean() + right[512:].mean()) / 2
        assert recorded == pytest.approx(expected)
        assert recorded != pytest.approx(float(right.mean()))
