"""The linear accuracy of a partition."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedgh import config
from fedgh.core.rng import stream
from fedgh.data import sources
from fedgh.data.sources import DataLocation, Source
from fedgh.errors import ConfigError
from fedgh.training import difficulty
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.loop import run


def digits() -> Source:
    return sources.digits(DataLocation())


def blobs(distances: Sequence[float], per_class: int = 200) -> Source:
    """Return classes around points on a line, at these distances in standard deviations."""
    y = torch.arange(len(distances)).repeat_interleave(per_class)
    x = torch.randn(len(y), 4, generator=stream(0, "blobs"))
    x[:, 0] += torch.tensor(distances)[y]
    names = tuple(f"class {number}" for number in range(len(distances)))
    return Source("blobs", x, y, names)


def experiment(source: Source, *settings: str) -> Experiment:
    fixed = ("model.extractors=mlp", "method.name=standalone")
    return prepare(config.load("demo", [*fixed, *settings]), source=source)


def accuracy(source: Source, *settings: str) -> float:
    measured = difficulty.linear_accuracy(experiment(source, *settings))
    assert measured is not None
    return measured


def test_classes_that_differ_are_easy_and_equal_classes_are_a_guess() -> None:
    pairs = ("federation.clients=2", "data.classes_per_client=2", "federation.seed=0")
    assert accuracy(blobs([0, 20]), *pairs) == 1.0
    guess = accuracy(blobs([0, 0], 2000), *pairs)
    assert guess == pytest.approx(0.5, abs=0.08)


def test_no_sample_is_classified_with_its_own_label() -> None:
    """The features are wider than the data: their own labels would make a guess look better."""
    source = blobs([0, 0])
    logits = difficulty._logits(experiment(source, "federation.clients=2"))
    assert logits is not None
    right = float((logits.argmax(1) == source.y).double().mean())
    assert right == pytest.approx(0.5, abs=0.075)  # three standard deviations


def test_a_client_chooses_only_among_its_own_classes() -> None:
    # Classes 0 and 1 are equal. A client with one of them makes no mistake.
    source = blobs([0, 0, 20, 20])
    own = [
        {tuple(row.nonzero().flatten().tolist()) for row in each.counts()}
        for each in (
            experiment(source, "federation.clients=4", f"federation.seed={s}") for s in range(8)
        )
    ]
    values = [accuracy(source, "federation.clients=4", f"federation.seed={s}") for s in range(8)]
    for classes, value in zip(own, values, strict=True):
        mixed = not classes & {(0, 1), (2, 3)}
        assert (value == 1.0) == mixed, (classes, value)
    assert any(value == 1.0 for value in values)
    assert any(value < 0.9 for value in values)


def test_it_is_the_mean_over_clients_counted_one_by_one() -> None:
    source = digits()
    prepared = prepare(config.load("demo", ["federation.seed=3"]), source=source)
    logits = difficulty._logits(prepared)
    assert logits is not None
    shares = []
    for client in range(len(prepared.partition)):
        train, _, test = prepared.partition.indices(client)
        own = sorted(set(source.y[train].tolist()))
        right = [best_of(logits[row], own) == int(source.y[row]) for row in test.tolist()]
        shares.append(sum(right) / len(right))
    expected = sum(shares) / len(shares)
    assert difficulty.linear_accuracy(prepared) == pytest.approx(expected, abs=1e-12)


def best_of(logits: Tensor, classes: list[int]) -> int:
    return max(classes, key=lambda label: float(logits[label]))


def test_other_seeds_give_the_values_of_their_own_experiments() -> None:
    source = digits()
    prepared = prepare(config.load("demo", []), source=source)
    others = difficulty.linear_accuracies(prepared, [4, 5])
    own = [
        difficulty.linear_accuracy(
            prepare(config.load("demo", [f"federation.seed={seed}"]), source=source)
        )
        for seed in (4, 5)
    ]
    assert others == own


def test_seeds_that_give_no_partition_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    scarce = ("data.partition=dirichlet", "data.alpha=0.07", "federation.clients=40")
    source = digits()
    prepared = experiment(source, *scarce)
    gives = []
    for seed in range(6):
        with suppress(ConfigError):
            gives.append(experiment(source, *scarce, f"federation.seed={seed}"))
    assert 2 <= len(gives) < 6
    monkeypatch.setattr(difficulty, "COMPARED_SEEDS", range(6))
    assert difficulty.linear_accuracies(prepared, range(6)) == [
        difficulty.linear_accuracy(each) for each in gives
    ]
    assert f"; {len(gives)} of seeds 0 to 5, the others give no" in difficulty.describe(prepared)


def test_samples_that_are_not_here_or_are_too_many_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare(config.load("demo", []), source=digits())
    monkeypatch.setattr(difficulty, "MAX_SAMPLES", 1000)
    assert difficulty.linear_accuracy(prepared) is None
    assert difficulty.describe(prepared) == ""
    private = replace(
        prepared,
        config=prepared.config.model_copy(
            update={"data": prepared.config.data.model_copy(update={"name": "private"})}
        ),
    )
    monkeypatch.undo()
    assert difficulty.linear_accuracy(private) is None


def test_the_summary_of_a_run_contains_it(tmp_path: Path) -> None:
    settings = ["federation.rounds=1", "local.epochs=1", "run.engine=serial", "data.samples=20"]
    prepared = prepare(config.load("demo", settings), source=digits())
    summary = run(prepared, tmp_path / "run").summary()
    assert summary.linear_accuracy == difficulty.linear_accuracy(prepared)
